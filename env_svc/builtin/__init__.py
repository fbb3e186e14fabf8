"""Environments that come with the service, registered as entry points in pyproject.toml like anyone else's."""
