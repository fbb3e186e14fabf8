"""Reports of executors: at each change, with what really waits."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from common import streams
from common.accelerators import ExecutorState, Function, Load, WorkDone
from common.bus import Bus, Delivery, Outgoing
from common.errors import Retry
from common.homes import BEGUN, Ages
from common.leases import reports as reports_
from common.leases.executor import LeasedExecutor
from common.leases.reports import Backlog, Waiting
from common.messages import ControlTask, ExecutorReport, ReplicaReport
from common.streams import REPLICAS_BUCKET, executor_now
from tests.support.buses import HASTY
from tests.support.consuming import consuming
from tests.support.leases.executables import ACCELERATOR, Paper, begun, identity, means, order
from tests.support.waiting import at_work, eventually, eventually_equals

PROMPTS = streams.rollout_samples("one")


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    """It reads NATS's clock once: each reading on a busy machine may move the times that are compared here."""
    async with await Bus.connect(nats_url, "test", timings=replace(HASTY, clock_every_s=600.0)) as bus:
        await bus.declare()
        yield bus


async def send(bus: Bus, count: int, pool: str = "one", start: int = 0) -> None:
    for number in range(start, start + count):
        message = ControlTask(task=f"t{number}", tenant="t")
        await bus.publish(Outgoing(streams.sample(pool, f"t{number}", "0-0"), message, f"prompt:{number}"))


class Reports:
    """The newest report of an executor."""

    def __init__(self, bus: Bus, executor: str) -> None:
        self._bus = bus
        self._executor = executor
        self.listens = asyncio.Event()
        self.seen: list[ExecutorReport] = []

    async def run(self) -> None:
        async with self._bus.requests.listening(executor_now(ACCELERATOR, self._executor)) as listening:
            self.listens.set()
            while True:
                if (delivery := await listening.next(60.0)) is not None:
                    self.seen.append(delivery.read(ExecutorReport))

    @property
    def newest(self) -> ExecutorReport:
        return self.seen[-1]


@asynccontextmanager
async def reporting(bus: Bus, folder: Path, paper: Paper, **other: object) -> AsyncGenerator[Reports]:
    async with AsyncExitStack() as stack:
        reports = Reports(bus, identity("one").executor)
        await stack.enter_async_context(at_work(reports.run()))
        await reports.listens.wait()
        executor = LeasedExecutor(means(bus, folder, "one", paper, **other), [PROMPTS], has_siblings=False)
        await stack.enter_async_context(at_work(executor.run()))
        await begun(bus)
        await eventually(lambda: reports.seen)
        yield reports


async def test_executor_reports_each_change_at_once(bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = Paper()
    monkeypatch.setattr(reports_, "REPORT_S", 600.0)  # no report but for a change
    async with reporting(bus, tmp_path, paper) as reports:
        assert reports.newest.state is ExecutorState.COLD and reports.newest.epoch == 0
        await order(bus, "one", 1, wake=True)
        await eventually(lambda: reports.newest.state is ExecutorState.AWAKE)
        first = next(one for one in reports.seen if one.state is ExecutorState.AWAKE)
        assert first.running is Function.GENERATE and first.begun == 1
        paper.load = Load()
        await eventually(lambda: reports.newest.running is None and reports.newest.begun == 0)
        monkeypatch.undo()  # what it has done is looked at as often
        paper.done = WorkDone({"t": 3}, busy_s=0.5, pieces=2)
        await eventually(lambda: (reports.newest.pieces, reports.newest.piece_s) == (2, 0.25))
        spaced = [later.at_s - earlier.at_s for earlier, later in zip(reports.seen, reports.seen[1:], strict=False)]
        assert min(spaced) > 0.015


async def test_idle_executor_reports_every_second_and_no_more(bus: Bus, tmp_path: Path) -> None:
    async with reporting(bus, tmp_path, Paper()) as reports:
        await eventually(lambda: len(reports.seen) >= 4)
        spaced = [later.at_s - earlier.at_s for earlier, later in zip(reports.seen[1:], reports.seen[2:], strict=False)]
        assert min(spaced) > 0.9


async def test_ready_is_what_no_process_has(bus: Bus, tmp_path: Path) -> None:
    """Also what was handed back, and what the killed process had: else nobody would wake for it."""
    backlog, taken, may_end = Backlog(bus, [PROMPTS]), asyncio.Event(), asyncio.Event()
    await backlog.declare()
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        taken.set()
        await may_end.wait()
        raise Retry("parked", delay_s=600.0)

    async def ready() -> int:
        await backlog.look()
        return backlog.ready

    await send(bus, 3)
    assert await ready() == 3
    async with consuming(bus, handler, slots=1, consumer=PROMPTS):
        await taken.wait()
        assert await ready() == 2, "one is with this process"
    assert await ready() == 3, "the end of the process handed it back"
    taken.clear()
    async with consuming(bus, handler, slots=1, consumer=PROMPTS):
        await taken.wait()
        may_end.set()
        await eventually_equals(ready, 3)
        assert bus.held(PROMPTS) < 3


async def test_messages_that_a_parked_executor_keeps_are_ready(bus: Bus) -> None:
    """A trainer keeps batches that wait for their turn; only the one that it trains is begun."""
    taken = asyncio.Semaphore(0)
    backlog = Backlog(bus, [PROMPTS], lambda: Load(Function.TRAIN, begun=1, messages=1))
    await backlog.declare()
    await send(bus, 3)

    async def handler(_: Delivery) -> None:
        taken.release()
        await asyncio.Event().wait()

    async with consuming(bus, handler, slots=3, consumer=PROMPTS):
        for _ in range(3):
            await taken.acquire()
        await backlog.look()
        assert (sum(backlog.begun_by_queue.values()), backlog.ready) == (1, 2)


async def test_messages_of_a_killed_process_are_ready(nats_url: str, bus: Bus) -> None:
    backlog, taken = Backlog(bus, [PROMPTS]), asyncio.Event()
    await backlog.declare()
    await send(bus, 2)
    other = await Bus.connect(nats_url, "other", timings=HASTY)

    async def handler(_: Delivery) -> None:
        taken.set()
        await asyncio.Event().wait()

    async with consuming(other, handler, slots=1, consumer=PROMPTS):
        await taken.wait()
        await backlog.look()
        assert backlog.ready == 2, "a single executor of a pool counts what it does not have itself"
        report = ReplicaReport(replica="other", service="rollout", pool="one", busy={BEGUN: other.held(PROMPTS)})
        await bus.kv.put(REPLICAS_BUCKET, "rollout.other", report)
        await backlog.look_elsewhere("rollout", "one", "one")
        await backlog.look()
        assert backlog.ready == 1, "the other replica lives, and has one"
    await other.close()
    await bus.kv.delete(REPLICAS_BUCKET, "rollout.other")
    await backlog.look_elsewhere("rollout", "one", "one")
    await backlog.look()
    assert backlog.ready == 2


async def test_parked_executor_reports_work_that_arrives(bus: Bus, tmp_path: Path) -> None:
    async with reporting(bus, tmp_path, Paper()) as reports:
        assert (reports.newest.ready, reports.newest.ready_since_s) == (0, None)
        now_s = bus.clock.now_s()
        await send(bus, 5)
        await eventually(lambda: reports.newest.ready == 5)
        since_s = next(one.ready_since_s for one in reports.seen if one.ready)
        assert since_s is not None and now_s - 0.1 <= since_s <= reports.newest.at_s


async def test_work_waits_since_its_oldest_came_that_is_not_begun(bus: Bus) -> None:
    """Of a queue that is never empty, also where a process hands back what it had begun."""
    backlog, taken = Backlog(bus, [PROMPTS]), asyncio.Semaphore(0)
    await backlog.declare()

    async def handler(_: Delivery) -> None:
        taken.release()
        await asyncio.Event().wait()

    async def oldest_of(ready: int) -> float | None:
        async def sees() -> bool:
            await backlog.look()
            return backlog.ready == ready

        await eventually(sees)  # NATS counts what it has stored for a consumer a moment after it acknowledged it
        return backlog.oldest_s

    assert await oldest_of(0) is None
    await send(bus, 2)
    first_s = await oldest_of(2)
    await send(bus, 3, start=2)
    assert first_s is not None and await oldest_of(5) == first_s
    second_s: float | None = None
    for _ in range(2):
        async with consuming(bus, handler, slots=3, consumer=PROMPTS):
            for _ in range(3):
                await taken.acquire()
            second_s = second_s or await oldest_of(2)
            assert second_s is not None and second_s > first_s, "the first two are begun"
            assert await oldest_of(2) == second_s
        assert await oldest_of(5) == second_s, "three are handed back"


def test_age_of_a_saturated_queue_is_that_of_its_oldest() -> None:
    """Ten come and ten are begun each second, and thirty wait."""
    ages = Ages()
    for second in range(100):
        ages.look(float(second), pending=30, kept=0, delivered=10 * second)
    assert ages.oldest_s == 97.0


def test_what_is_kept_counts_until_it_is_begun() -> None:
    """A trainer is delivered batches before it begins them."""
    ages = Ages()
    ages.look(1.0, pending=2, kept=0, delivered=5)
    ages.look(2.0, pending=0, kept=2, delivered=7)
    ages.look(3.0, pending=1, kept=2, delivered=7)
    assert ages.oldest_s == 1.0
    ages.look(4.0, pending=1, kept=0, delivered=7)
    assert ages.oldest_s == 3.0
    ages.look(5.0, pending=0, kept=0, delivered=8)
    assert ages.oldest_s is None


@pytest.mark.parametrize("is_begun_at_once", [True, False])
def test_what_is_handed_back_waits_from_then_and_begins_no_other_when_it_comes_again(is_begun_at_once: bool) -> None:
    ages = Ages()
    ages.look(1.0, pending=6, kept=0, delivered=0)
    ages.look(2.0, pending=2, kept=0, delivered=4)
    ages.look(3.0, pending=4, kept=4, delivered=4)
    assert ages.oldest_s == 1.0
    if not is_begun_at_once:
        ages.look(4.0, pending=4, kept=4, delivered=8)
    ages.look(5.0, pending=4, kept=0, delivered=8)
    assert ages.oldest_s == 1.0, "the fifth and the sixth are not begun"
    ages.look(6.0, pending=2, kept=0, delivered=10)
    assert ages.oldest_s == 3.0
    ages.look(7.0, pending=2, kept=3, delivered=10)
    ages.look(8.0, pending=0, kept=3, delivered=12)
    assert ages.oldest_s == 7.0, "the last two are begun, and not what was handed back"


def test_message_that_seems_handed_back_for_a_moment_hardly_changes_an_age() -> None:
    """Its acknowledgement is on the way. It may be taken for one that comes again: a tenth of what is begun."""
    ages = Ages()
    for second in range(100):
        ages.look(float(second), pending=30, kept=0, delivered=10 * second)
        ages.look(second + 0.5, pending=30, kept=1, delivered=10 * second)
    assert ages.oldest_s == 96.0


def test_ages_are_unknown_of_a_queue_that_was_made_anew() -> None:
    ages = Ages()
    ages.look(1.0, pending=6, kept=2, delivered=1000)
    ages.look(2.0, pending=3, kept=0, delivered=0)
    assert ages.oldest_s == 1.0
    ages.look(3.0, pending=0, kept=0, delivered=3)
    assert ages.oldest_s is None


def test_frozen_operations_wait_since_they_were() -> None:
    waiting = Waiting()
    assert waiting.since_s(1.0, oldest_s=None, frozen=False) is None
    assert waiting.since_s(2.0, oldest_s=1.5, frozen=False) == 1.5
    assert waiting.since_s(3.0, oldest_s=None, frozen=True) == 3.0
    assert waiting.since_s(4.0, oldest_s=3.5, frozen=True) == 3.0
    assert waiting.since_s(5.0, oldest_s=2.5, frozen=True) == 2.5
    assert waiting.since_s(6.0, oldest_s=None, frozen=False) is None
    assert waiting.since_s(7.0, oldest_s=None, frozen=True) == 7.0
