"""Stages whose trainer waits, and batches that wait for it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from nats.js.errors import APIError

from common import streams
from common.bus import Bus, Delivery, Outgoing
from tests.support.scheduler.stages import Stages, World

WRONG_LAST_MESSAGE_ID = 10070
"""NATS's error code for a message that expects another last message id."""


async def forget_message_ids(bus: Bus) -> None:
    """Shorten the two minutes for which NATS remembers message ids, also those of stored messages: see `is_forgotten`.

    A change makes NATS forget expired ids. It may still do so by the window before the change, and next when that has passed. Hence two.
    """
    js = bus.blobs_context()
    for stream in (streams.BATCHES, streams.WEIGHTS):
        config = (await js.stream_info(stream.name)).config
        for window_s in (0.2, 0.1):
            await js.update_stream(config.evolve(duplicate_window=window_s))


async def is_forgotten(bus: Bus, out: Outgoing) -> bool:
    """Whether NATS would store a message with the id of `out`, and not drop it as a duplicate.

    Stores nothing: NATS drops duplicates first, then refuses the message, because it expects another last message id.
    """
    headers = {"Nats-Msg-Id": out.message_id, "Nats-Expected-Last-Msg-Id": "of no message"}
    try:
        await bus.blobs_context().publish(out.subject, headers=headers)
    except APIError as error:
        if error.err_code != WRONG_LAST_MESSAGE_ID:
            raise
        return True
    return False


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
