"""Queues of executors of one pool on two accelerators, over a real NATS: none is without a reader."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Delivery, Handler, Outgoing, Slots
from common.homes import AWAKE, BEGUN, OWN_QUEUE, Member, Queues
from common.homes.reading import Taking
from common.leases.reports import Backlog
from common.messages import ControlTask, ReplicaReport
from common.streams import REPLICAS_BUCKET
from tests.support.buses import HASTY
from tests.support.keyed import keyed_server
from tests.support.waiting import at_work, eventually, eventually_equals

OTHERS = streams.rollout_samples("one@b")


class Reader:
    """The executor on `a`, and what it took."""

    def __init__(self, bus: Bus, *, move_s: float = 1000.0, max_wait_s: float = 1000.0, start_s: float = 0.0) -> None:
        self.slots = Slots(4)
        self.queues = Queues(bus, Member("rollout", "one", "a", "ra"), ["b"], self.slots, lambda: move_s, max_wait_s, start_s=start_s)
        self.began: list[str] = []
        self.ended: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        name = delivery.subject.removeprefix("prompts.sample.")
        self.began.append(name)
        await self.may_end.wait()
        self.ended.append(name)
        return
        yield

    def at_work(self) -> AbstractAsyncContextManager[object]:
        return at_work(self.queues.consume(self.handle))


async def send(bus: Bus, queue: str, task: str) -> None:
    message = ControlTask(task=task, tenant="t")
    await bus.publish(Outgoing(streams.sample(queue, task, "0-0"), message, f"{queue}:{task}"))


async def reading_b(nats_url: str, handler: Handler) -> None:
    """What the executor on `b` does, with a connection of its own."""
    async with await Bus.connect(nats_url, "b", timings=HASTY) as own:
        await own.consume(OTHERS, handler, Slots(4))


async def served(_: Delivery) -> AsyncIterator[Outgoing]:
    return
    yield


async def other(bus: Bus, *, able: bool = True, awake: bool = True, begun: int = 0) -> None:
    """The executor on `b` reports."""
    busy = {f"{OWN_QUEUE}@b": float(able), AWAKE: float(awake), BEGUN: 0.0, f"{BEGUN}@b": float(begun)}
    await bus.kv.put(REPLICAS_BUCKET, "rollout.rb", ReplicaReport(replica="rb", service="rollout", pool="one", busy=busy))


async def test_executor_reads_its_own_queue_and_the_pools_and_no_other(bus: Bus) -> None:
    await other(bus)
    reader = Reader(bus)
    async with reader.at_work():
        for queue in ("one@b", "one", "one@a"):
            await send(bus, queue, "t")
        await eventually(lambda: len(reader.ended) == 2)
        assert sorted(reader.ended) == ["one.t.0-0", "one@a.t.0-0"]
        assert (await bus.streams.queue(OTHERS)).pending == 1 and reader.queues.taken_over == []
        await send(bus, "one", "guest")
        await eventually(lambda: "one.guest.0-0" in reader.ended)
        assert reader.queues.is_at_home("t") and not reader.queues.is_at_home("guest")


async def test_queue_of_an_executor_that_is_gone_is_read_until_it_is_back(bus: Bus) -> None:
    """What had begun by then is not interrupted."""
    reader = Reader(bus)
    reader.may_end.clear()
    async with reader.at_work():
        await send(bus, "one@b", "first")
        await eventually(lambda: reader.began == ["one@b.first.0-0"])
        await other(bus)
        await eventually(lambda: reader.queues.taken_over == [])
        for _ in range(3):  # each answer comes after all that was sent before: its request for more is withdrawn
            await _counts(bus)
        await send(bus, "one@b", "second")
        reader.may_end.set()
        await eventually(lambda: reader.ended == ["one@b.first.0-0"])
        await eventually_equals(lambda: _counts(bus), (1, 0))
        await other(bus, able=False)
        await eventually(lambda: reader.ended == ["one@b.first.0-0", "one@b.second.0-0"])


async def _counts(bus: Bus) -> tuple[int, int]:
    found = await bus.streams.queue(OTHERS)
    return found.pending, found.unacknowledged


async def test_executor_with_room_helps_once_a_message_has_waited_longer_than_a_move_takes(bus: Bus) -> None:
    await other(bus)
    reader = Reader(bus, move_s=0.5)
    async with reader.at_work():
        reader.may_end.clear()
        own = [f"one@a.own-{number}.0-0" for number in range(4)]
        for number in range(4):
            await send(bus, "one@a", f"own-{number}")
        await eventually(lambda: sorted(reader.began) == own)
        sent_s = bus.clock.now_s()
        await send(bus, "one@b", "others")
        await eventually(lambda: bus.clock.now_s() > sent_s + 1.5)
        assert sorted(reader.began) == own, "it is full"
        reader.slots.release(2)
        await eventually(lambda: reader.began[4:] == ["one@b.others.0-0"])
        reader.slots.take(2)
        reader.may_end.set()
        assert reader.queues.taken_over == []


async def test_parked_executor_takes_over_what_waits_too_long_and_wakes_for_it(bus: Bus) -> None:
    await other(bus, awake=False, begun=1)
    reader = Reader(bus, max_wait_s=0.5)
    reader.slots.close()
    backlog = Backlog(bus, reader.queues.own, siblings=reader.queues)
    async with reader.at_work():
        await backlog.declare()
        await send(bus, "one@b", "t")
        await eventually(lambda: reader.queues.taken_over == [OTHERS])
        await backlog.look()
        assert (backlog.ready, reader.began) == (1, [])
        assert backlog.oldest_s is not None and bus.clock.now_s() - backlog.oldest_s > 0.5, "it has waited for max_wait_s already"
        reader.slots.open()
        await eventually(lambda: reader.ended == ["one@b.t.0-0"])

        async def ready() -> int:
            await backlog.look()
            return backlog.ready

        await eventually_equals(ready, 0)


async def test_messages_that_an_awake_executor_holds_do_not_call_for_help(bus: Bus, nats_url: str) -> None:
    """A trainer prefetches, and reports go out every 5 s: what it has is not what waits. Parked, it may keep them for a long time."""
    await other(bus, begun=0)
    reader = Reader(bus, move_s=0.5)
    may_end = asyncio.Event()

    async def compute(_: Delivery) -> AsyncIterator[Outgoing]:
        await may_end.wait()
        return
        yield

    async with at_work(reading_b(nats_url, compute)):
        await send(bus, "one@b", "computes")
        await eventually_equals(lambda: _counts(bus), (0, 1))
        async with reader.at_work():
            held_s = bus.clock.now_s()
            await eventually(lambda: bus.clock.now_s() > held_s + 2.0)
            assert reader.queues._others[0].taking is Taking.NOTHING
            await other(bus, awake=False)
            await eventually(lambda: reader.queues._others[0].taking is Taking.HELP, 15)
        may_end.set()
        await eventually_equals(lambda: _counts(bus), (0, 0))


async def test_executor_helps_until_it_is_full(bus: Bus) -> None:
    await other(bus)
    reader = Reader(bus, move_s=0.2)
    reader.may_end.clear()
    await bus.declarations.declare_consumer(OTHERS)
    for task in "qrstuv":
        await send(bus, "one@b", task)
    async with reader.at_work():
        await eventually(lambda: len(reader.began) == 4)
        began_s = bus.clock.now_s()
        await eventually(lambda: bus.clock.now_s() > began_s + 1.0)
        assert len(reader.began) == 4 and await _counts(bus) == (2, 4)
        reader.may_end.set()
        await eventually(lambda: len(reader.ended) == 6)


async def test_messages_taken_as_help_are_reported_until_they_end(bus: Bus) -> None:
    """Else their home is woken for work that this executor does, and gets nothing."""
    await other(bus)
    reader = Reader(bus, move_s=0.2)
    reader.may_end.clear()
    backlog = Backlog(bus, reader.queues.own, siblings=reader.queues)
    async with reader.at_work():
        await send(bus, "one@b", "t")
        await eventually(lambda: reader.began == ["one@b.t.0-0"])
        assert reader.queues.taken_over == [] and backlog.begun_by_queue == {BEGUN: 0, f"{BEGUN}@a": 0, f"{BEGUN}@b": 1}
        reader.may_end.set()
        await eventually(lambda: f"{BEGUN}@b" not in backlog.begun_by_queue)


async def test_executor_that_has_not_started_yet_is_not_taken_for_one_that_is_gone(bus: Bus) -> None:
    began_s = time.monotonic()
    reader = Reader(bus, start_s=2.0)
    async with reader.at_work():
        await send(bus, "one@b", "t")
        await eventually(lambda: reader.ended == ["one@b.t.0-0"])
        assert time.monotonic() > began_s + 1.9


async def test_queue_that_is_taken_over_or_given_back_does_not_change_how_long_others_messages_waited(bus: Bus, nats_url: str) -> None:
    reader = Reader(bus)
    reader.slots.close()
    backlog = Backlog(bus, reader.queues.own, siblings=reader.queues)
    async with reader.at_work():
        await backlog.declare()
        await send(bus, "one@a", "own")
        await other(bus)
        await eventually(lambda: reader.queues.taken_over == [])
        await backlog.look()
        came_s = backlog.oldest_s
        async with at_work(reading_b(nats_url, served)):
            for number in range(3):
                await send(bus, "one@b", f"t{number}")
            await eventually_equals(lambda: _counts(bus), (0, 0))
        await other(bus, able=False, awake=False)
        await eventually(lambda: reader.queues.taken_over == [OTHERS])
        await backlog.look()
        assert backlog.ready == 1 and backlog.oldest_s == came_s is not None


@pytest.mark.parametrize("service", ["rollout", "trainer"])
async def test_executor_with_a_key_of_an_earlier_pools_file_reads_its_pools_queue(tmp_path: Path, service: str) -> None:
    """It does not claim to read its own, so that the scheduler sends nothing there."""
    async with (
        keyed_server(tmp_path / "nats", refuses=True) as keyed,
        await keyed.connect("scheduler") as scheduler,
        await keyed.connect("env") as env,
        await keyed.connect(service) as bus,
    ):
        await scheduler.declare()
        began = asyncio.Event()

        async def handle(_: Delivery) -> AsyncIterator[Outgoing]:
            began.set()
            return
            yield

        slots = Slots(4)
        slots.close()
        queues = Queues(bus, Member(service, "tiny", "new", "ra"), ["newer"], slots, lambda: 1.0, 60.0, start_s=0.0)
        backlog = Backlog(bus, queues.own, siblings=queues)
        async with at_work(queues.consume(handle)), at_work(backlog.declare()):
            subject = streams.sample("tiny", "t", "0-0") if service == "rollout" else streams.batch("tiny", "t")
            await (env if service == "rollout" else scheduler).publish(Outgoing(subject, ControlTask(task="t", tenant="t"), subject))
            await asyncio.wait_for(backlog.is_declared.wait(), 60)

            async def is_ready() -> bool:
                await backlog.look()
                return backlog.ready == 1

            await eventually(is_ready, 60)
            slots.open()
            await asyncio.wait_for(began.wait(), 60)
            assert not queues.reads_own


@pytest.mark.parametrize("service", ["rollout", "trainer"])
async def test_service_may_read_the_queues_of_its_pool_with_its_key(tmp_path: Path, service: str) -> None:
    async with (
        keyed_server(tmp_path / "nats") as keyed,
        await keyed.connect("scheduler") as scheduler,
        await keyed.connect("env") as env,
        await keyed.connect(service) as bus,
    ):
        await scheduler.declare()
        began = asyncio.Semaphore(0)

        async def handle(_: Delivery) -> AsyncIterator[Outgoing]:
            began.release()
            return
            yield

        queues = Queues(bus, Member(service, "tiny", "a", "ra"), ["b"], Slots(4), lambda: 1.0, 60.0, start_s=0.0)
        async with at_work(queues.consume(handle)):
            for queue in ("tiny", "tiny@a", "tiny@b"):
                subject = streams.sample(queue, "t", "0-0") if service == "rollout" else streams.batch(queue, "t")
                sender = env if service == "rollout" else scheduler
                await sender.publish(Outgoing(subject, ControlTask(task="t", tenant="t"), subject))
                await began.acquire()


async def test_begun_messages_are_told_by_queue(bus: Bus) -> None:
    """A sibling must not take what this one has begun in its own queue for what nobody has in the pool's."""
    await other(bus)
    reader = Reader(bus)
    reader.may_end.clear()
    backlog = Backlog(bus, reader.queues.own)
    async with reader.at_work():
        for queue, task in (("one", "s"), ("one@a", "t"), ("one@a", "u")):
            await send(bus, queue, task)
        await eventually(lambda: len(reader.began) == 3)
        assert backlog.begun_by_queue == {BEGUN: 1, f"{BEGUN}@a": 2}
        siblings = Backlog(bus, [streams.rollout_samples("one"), OTHERS])
        own = ReplicaReport(replica="ra", service="rollout", pool="one", busy=dict(backlog.begun_by_queue))
        await bus.kv.put(REPLICAS_BUCKET, "rollout.ra", own)
        await siblings.look_elsewhere("rollout", "one", "rb")
        await siblings.look()
        assert siblings.ready == 0
        reader.may_end.set()
