"""Requests for messages are withdrawn when there is no room for what they would bring."""

import asyncio
from dataclasses import replace

from common.bus import Bus, Delivery, Slots
from common.errors import HandedBack
from common.messages import SubmitTask
from tests.support.buses import HASTY
from tests.support.consuming import JOBS, as_handler, drained, job
from tests.support.waiting import at_work, eventually, eventually_equals


async def waits(bus: Bus) -> tuple[int, int]:
    """Messages that were never delivered, and those that were."""
    queue = await bus.streams.queue(JOBS)
    return queue.pending, queue.unacknowledged


async def test_requests_under_way_are_withdrawn_when_slots_close(bus: Bus) -> None:
    """A message that such a request brought would be read only to be handed back."""
    attempts: list[tuple[str, int]] = []
    slots = Slots(8)

    async def handler(delivery: Delivery) -> None:
        attempts.append((delivery.read(SubmitTask).task, delivery.attempt))
        if slots.are_closed:
            raise HandedBack("parked")

    async with at_work(bus.consume(JOBS, as_handler(handler), slots)):
        await bus.publish(job("a"))
        await drained(bus)
        for task in ("b", "c"):
            slots.close()
            for _ in range(3):  # each answer comes after all that was sent before
                assert await waits(bus) == (0, 0)
            await bus.publish(job(task))
            await eventually_equals(lambda: waits(bus), (1, 0))
            slots.open()
            await drained(bus)
    assert attempts == [("a", 1), ("b", 1), ("c", 1)]


async def test_slots_that_open_at_once_request_messages_all_the_same(bus: Bus, nats_url: str) -> None:
    slots, taken, patient = Slots(8), asyncio.Event(), replace(HASTY, pull_expires_s=250.0)

    async def handler(delivery: Delivery) -> None:
        taken.set()

    async with await Bus.connect(nats_url, "patient", timings=patient) as reader, at_work(reader.consume(JOBS, as_handler(handler), slots)):
        await reader.publish(job("a"))
        await drained(reader)
        taken.clear()
        for _ in range(4):  # the first withdrawal waits for the server meanwhile
            slots.close()
            await asyncio.sleep(0)
        slots.open()
        for _ in range(3):
            await reader.streams.queue(JOBS)
        await reader.publish(job("b"))
        async with asyncio.timeout(60):  # less than what a request waits for
            await taken.wait()
        await drained(reader)


async def test_fewer_units_withdraw_requests_and_more_repeat_them(bus: Bus) -> None:
    slots, may_end, began = Slots(8), asyncio.Event(), list[str]()

    async def handler(delivery: Delivery) -> None:
        began.append(delivery.read(SubmitTask).task)
        await may_end.wait()

    async with at_work(bus.consume(JOBS, as_handler(handler), slots)):
        for task in ("a", "b"):
            await bus.publish(job(task))
        await eventually_equals(lambda: waits(bus), (0, 2))
        slots.resize(1)
        assert (slots.free, slots.used, slots.load) == (0, 2, 2.0)
        for _ in range(3):  # each answer comes after all that was sent before
            assert await waits(bus) == (0, 2)
        await bus.publish(job("c"))
        await eventually_equals(lambda: waits(bus), (1, 2))
        slots.resize(3)
        await eventually(lambda: began == ["a", "b", "c"])
        assert (slots.free, slots.load) == (0, 1.0)
        may_end.set()
        await drained(bus)
    assert (slots.free, slots.load) == (3, 0.0)
