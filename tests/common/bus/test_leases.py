"""Leases of messages in flight, and the redelivery of unfinished work."""

import asyncio
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from common import streams
from common.bus import HEARTBEATS_PER_LEASE, Bus, Delivery
from common.bus.pull import Pull
from common.bus.transport.timings import Timings
from common.heartbeats import IN_PROGRESS
from common.messages import SubmitTask
from marlaas.stack import servers
from tests.support.consuming import JOBS, consuming, drained, job
from tests.support.proxy import Wire
from tests.support.waiting import eventually, eventually_equals


async def deliveries(bus: Bus, consumer: streams.Consumer) -> int:
    """Number of deliveries that the server has made."""
    delivered = (await bus.blobs_context().consumer_info(consumer.stream, consumer.name)).delivered
    return delivered.consumer_seq if delivered else 0


class HeardBeats(threading.Thread):
    """Times at which the server passed on a heartbeat; a thread, as the event loop is blocked."""

    def __init__(self, nats_url: str) -> None:
        super().__init__(daemon=True)
        self.at_s: list[float] = []
        self._socket = socket.create_connection(("127.0.0.1", int(nats_url.rpartition(":")[2])))
        self._socket.sendall(b"CONNECT {}\r\nSUB $JS.ACK.> 1\r\n")

    def run(self) -> None:
        with suppress(OSError), self._socket, self._socket.makefile("rb") as lines:
            for line in lines:
                if line.strip() == IN_PROGRESS:
                    self.at_s.append(time.monotonic())

    def wait_for(self, count: int) -> None:
        until_s = time.monotonic() + 30
        while len(self.at_s) < count and time.monotonic() < until_s:
            time.sleep(0.02)


async def test_work_that_blocks_the_event_loop_for_longer_than_its_lease_is_not_redelivered(bus: Bus, nats_url: str) -> None:
    leased, heard = replace(JOBS, ack_wait_s=1.0), HeardBeats(nats_url)
    heard.start()
    ended = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        heard.wait_for(2 * HEARTBEATS_PER_LEASE)
        await asyncio.sleep(0)
        heard.wait_for(2 * HEARTBEATS_PER_LEASE + 2)
        ended.set()

    async with consuming(bus, handler, consumer=leased):
        began_s = time.monotonic()
        await bus.publish(job("a"))
        await ended.wait()
        await drained(bus)
        apart_s = max(after - before for before, after in pairwise([began_s, *heard.at_s, time.monotonic()]))
        assert len(heard.at_s) > 2 * HEARTBEATS_PER_LEASE
        assert await deliveries(bus, leased) == 1 or apart_s > leased.ack_wait_s / 2, "unless this process itself stood still"


async def test_work_that_outlives_its_lease_while_nats_is_unreachable_is_not_restarted(nats_url: str, bus: Bus) -> None:
    leased = replace(JOBS, ack_wait_s=1.0)
    attempts: list[int] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        await may_end.wait()

    def is_redelivered() -> bool:
        return len(attempts) > 1 or "message_redelivered_to_its_holder" in [line["event"] for line in logs]

    with capture_logs() as logs:
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
            await eventually(is_redelivered)
            assert attempts == [1]
            may_end.set()
            await drained(bus)


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
