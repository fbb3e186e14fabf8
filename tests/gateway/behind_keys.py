"""A gateway with keys before two running tasks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.support.gateway.entering import Keyring, with_keys
from tests.support.gateway.serving import gateway
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World


@asynccontextmanager
async def behind_keys(keyed: Keyed, world: World) -> AsyncGenerator[tuple[str, Keyring]]:
    """Address of a gateway that has its own key, and keys; tasks `slow-1` and `slow-2` of acme run."""
    async with with_keys(keyed) as (made, keys):
        for task in ("slow-1", "slow-2"):
            await world.run(task, until="accepted")
        async with gateway(made.bus, keyed.url, access=made.access) as address:
            yield address, keys
