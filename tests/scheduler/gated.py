"""Stages whose trainer waits, and batches that wait for it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from common import streams
from common.bus import Bus, Delivery, Outgoing
from tests.support.scheduler.stages import Stages, World


async def forget_message_ids(bus: Bus) -> None:
    """Shorten the two minutes for which NATS remembers message ids."""
    js = bus.blobs_context()
    for stream in (streams.BATCHES, streams.WEIGHTS):
        config = (await js.stream_info(stream.name)).config
        await js.update_stream(config.evolve(duplicate_window=0.1))


async def is_relayed(world: World, backlog: int) -> bool:
    """Whether the outbox is empty, and `backlog` batches are unacknowledged."""
    return await world.bus.streams.backlog(streams.BATCHES) == backlog and await world.rows("SELECT id FROM outbox") == []


@dataclass
class GatedStages(Stages):
    """Stages whose trainer waits for a gate to open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        await self.gate.wait()
        async for out in super().train(delivery):
            yield out
