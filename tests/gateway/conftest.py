"""A scheduler on a server that wants keys."""

from tests.marlaas.conftest import keyed, keyed_world

__all__ = ["keyed", "keyed_world"]
