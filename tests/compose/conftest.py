import os
from collections.abc import Iterator

import pytest

from tests.compose.deployment import Deployment, why_not


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    """Everything in docker-compose.yml, built from this tree, started and ready.

    Skips unless COMPOSE_TEST is set, because it builds images; where it is set, not to have Docker is a failure.
    """
    if not os.environ.get("COMPOSE_TEST"):
        pytest.skip("THE CONTAINERS ARE NOT TESTED: run `make test-compose`, or set COMPOSE_TEST=1")
    reason = why_not()
    if reason is not None:
        pytest.fail(f"COMPOSE_TEST is set, but {reason}")
    deployment = Deployment()
    deployment.build()
    try:
        deployment.cold_start_s = deployment.up()
        yield deployment
    finally:
        deployment.remove()
