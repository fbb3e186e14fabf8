"""Leases of messages in flight, and the redelivery of unfinished work."""

import asyncio
import time
from dataclasses import replace

import pytest
from nats.aio.msg import Msg

from common import streams
from common.bus import Bus, Delivery
from common.bus.pull import Pull
from common.bus.transport.timings import Timings
from common.messages import SubmitTask
from marlaas.stack import servers
from tests.support.consuming import JOBS, consuming, drained, job
from tests.support.proxy import Wire
from tests.support.waiting import eventually, eventually_equals


async def deliveries(bus: Bus, consumer: streams.Consumer) -> int:
    """Number of deliveries that the server has made."""
    delivered = (await bus.blobs_context().consumer_info(consumer.stream, consumer.name)).delivered
    return delivered.consumer_seq if delivered else 0


async def test_work_that_blocks_the_event_loop_for_longer_than_its_lease_is_not_redelivered(bus: Bus) -> None:
    leased = replace(JOBS, ack_wait_s=1.0)
    ended = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        time.sleep(2 * leased.ack_wait_s)
        await asyncio.sleep(0)
        time.sleep(leased.ack_wait_s)
        ended.set()

    async with consuming(bus, handler, consumer=leased):
        await bus.publish(job("a"))
        await ended.wait()
        await drained(bus)
        assert await deliveries(bus, leased) == 1


async def test_work_that_outlives_its_lease_while_nats_is_unreachable_is_not_restarted(nats_url: str, bus: Bus) -> None:
    leased = replace(JOBS, ack_wait_s=1.0)
    attempts: list[int] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await may_end.wait()

    async def redelivered() -> bool:
        return await deliveries(bus, leased) > 1

    async with (
        Wire("silent", int(nats_url.rpartition(":")[2])).listening() as wire,
        await Bus.connect(servers.nats_url(wire.port), "behind the wire") as behind,
        consuming(behind, handler, consumer=leased),
    ):
        await bus.publish(job("a"))
        await eventually(lambda: attempts)
        wire.silence()
        await asyncio.sleep(2 * leased.ack_wait_s)
        wire.speak()
        await eventually(redelivered)
        may_end.set()
        await drained(bus)
    assert attempts == [1]


async def test_message_with_the_sequence_of_one_in_flight_is_another_where_its_stream_is_new(bus: Bus) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        begun.append(delivery.read(SubmitTask).task)
        await may_end.wait()

    async with consuming(bus, handler):
        assert await bus.publish(job("old")) == 1
        await eventually(lambda: begun)
        await bus.declarations.recreate(streams.JOBS, first_sequence=1)
        assert await bus.publish(job("new")) == 1
        await eventually(lambda: begun == ["old", "new"])
        may_end.set()


async def test_lease_of_a_consumer_that_is_there_already_becomes_the_current_one(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> None:
        pass

    async def lease_s() -> float | None:
        return (await bus.blobs_context().consumer_info(JOBS.stream, JOBS.name)).config.ack_wait

    for wanted_s in (30.0, streams.scheduler_jobs("acme").ack_wait_s):
        async with consuming(bus, handler, consumer=replace(JOBS, ack_wait_s=wanted_s)):
            await eventually_equals(lease_s, wanted_s)


async def test_shutdown_returns_unfinished_work_to_the_queue_at_once(bus: Bus) -> None:
    started = asyncio.Event()

    async def stuck(delivery: Delivery) -> None:
        started.set()
        await asyncio.sleep(60)

    # It is not the end of its lease, which takes a minute, that brings it back.
    async with consuming(bus, stuck):
        await bus.publish(job("a"))
        await started.wait()
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    async with consuming(bus, handler):
        await eventually(lambda: attempts == [2])


async def test_shutdown_returns_what_has_only_just_come(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = await Bus.connect(nats_url, "patient", timings=Timings(drain_timeout_s=60.0))
    sent, arrived, seen = 300, set[bytes](), set[bytes]()
    arrive, came = Pull._arrive, asyncio.Event()

    def noted(pull: Pull, message: Msg) -> None:
        arrived.add(message.data)
        came.set()
        arrive(pull, message)

    async def handler(delivery: Delivery) -> None:
        seen.add(delivery.body)

    monkeypatch.setattr(Pull, "_arrive", noted)
    for first in range(0, sent, 20):  # each shutdown begins as the first of them has come
        came.clear()
        publishing = [asyncio.create_task(bus.publish(job(f"t{first + each}"))) for each in range(20)]
        async with consuming(bus, handler, slots=64):
            await came.wait()
        await asyncio.gather(*publishing)
    returned = arrived - seen
    # What NATS sent as the subscription ended did not arrive here, and comes again only at its lease's end.
    async with consuming(bus, handler, slots=64):
        await eventually(lambda: returned <= seen, JOBS.ack_wait_s / 2)
        await eventually(lambda: len(seen) == sent)
