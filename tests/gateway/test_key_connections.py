"""Connections of HTTP keys to a real NATS: how many, and for how long."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from common.errors import Unavailable
from tests.support.gateway.entering import asks, entering
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World
from tests.support.waiting import eventually


async def test_one_connection_for_many_requests_and_none_when_idle(keyed: Keyed, keyed_world: World) -> None:
    async with entering(keyed, idle_s=0.5) as gateway:
        await gateway.tenant("acme")
        text = await gateway.key("acme", "ci")
        async with AsyncExitStack() as entered:
            callers = await asyncio.gather(*(entered.enter_async_context(gateway.access.entered(text)) for _ in range(50)))
            assert len({id(caller.door._bus) for caller in callers}) == 1
            await asyncio.sleep(1.0)  # longer than idle_s
            assert gateway.access.connections == 1
            await asks(callers[0].door)
        await eventually(lambda: gateway.access.connections == 0, 30)
        assert not callers[0].ended.is_set()
        await eventually(lambda: not callers[0].door._bus.is_connected, 30)
        async with gateway.access.entered(text) as caller:
            await asks(caller.door)


async def test_connections_are_bounded_and_the_least_recently_used_goes(keyed: Keyed, keyed_world: World) -> None:
    async with entering(keyed, most=2) as gateway:
        await gateway.tenant("acme")
        first, second, third = [await gateway.key("acme", f"k{number}") for number in range(3)]
        for text in (first, second, first):
            async with gateway.access.entered(text):
                pass
        async with gateway.access.entered(first) as kept, gateway.access.entered(third):
            assert gateway.access.connections == 2
            with pytest.raises(Unavailable, match="as many keys"):
                async with gateway.access.entered(second):
                    pass
            await asks(kept.door)
            assert not kept.ended.is_set()
