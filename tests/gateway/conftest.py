"""A scheduler on a server that wants keys."""

from tests.marlaas.conftest import keyed, keyed_world  # noqa: F401  fixtures
