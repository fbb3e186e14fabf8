"""A replica takes what serving leaves, and hands stalled turns back, over a real NATS and beside an engine that samples nothing."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.errors import HandedBack
from common.homes import AWAKE
from common.messages import GroupContext, ReplicaReport, SampleTurns
from common.streams import REPLICAS_BUCKET
from common.task_states import TaskStates
from rollout_svc.adapters import Adapters
from rollout_svc.coserving.figures import Figures
from rollout_svc.coserving.lender import HANDED_BACK_S, Lender, room_elsewhere
from rollout_svc.coserving.lending import Room
from rollout_svc.engine.config import EXACT
from rollout_svc.engine.engine import Sampled, SampleRequest
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat
from tests.rollout.stage import first_turns, group_of
from tests.support.waiting import at_work, eventually

MOST = 8


class Stalled:
    """An engine whose requests get the tokens that a test gives them, and end when it says so."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(context_tokens=1000, adapters_held=8, serving_adapters=0)
        self.tokens: dict[str, int] = {}
        self._ends: dict[str, asyncio.Future[Sampled]] = {}

    @property
    def process(self) -> "Stalled":
        return self

    def progress(self) -> dict[str, int]:
        return dict(self.tokens)

    async def sample(self, wanted: SampleRequest) -> Sampled:
        self.tokens[wanted.request_id] = 0
        self._ends[wanted.request_id] = asyncio.get_running_loop().create_future()
        try:
            return await self._ends[wanted.request_id]
        finally:
            del self.tokens[wanted.request_id]

    def end(self, request_id: str) -> None:
        self._ends[request_id].set_result(Sampled([5], [-0.5], "length"))

    async def hand_back(self, request_ids: Collection[str]) -> None:
        for one in request_ids:
            self._ends[one].set_exception(HandedBack("this replica closes its engine"))


class Sibling:
    """The pool's other replica, which takes messages from `takes()` on."""

    def __init__(self, nats_url: str) -> None:
        self._nats_url = nats_url
        self.taken: list[tuple[int, int]] = []
        """Members of each message, and its deliveries."""
        self.keeps = False
        """Whether it holds what it takes until it stops taking, and then returns it."""

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        self.taken.append((len(delivery.read(SampleTurns).members), delivery.attempt))
        if self.keeps:
            await asyncio.Event().wait()
        return
        yield

    @asynccontextmanager
    async def takes(self) -> AsyncGenerator[None]:
        async with await Bus.connect(self._nats_url, "sibling") as own:
            consuming = own.consume(streams.rollout_samples("tiny"), self.handle, Slots(1))
            async with at_work(consuming):
                yield


class Lending:
    """A replica with its lender, on a clock of the test's own."""

    def __init__(self, bus: Bus, chat: Chat, folder: Path) -> None:
        self.bus, self.engine, self.slots, self.now_s = bus, Stalled(), Slots(MOST), 0.0
        self.figures: Figures | None = Figures()
        adapters = Adapters(self.engine, None, folder, keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
        self.rollout = Rollout(self.engine, chat, adapters, TaskStates(), self.slots, lambda _: 0.0)  # pyright: ignore[reportArgumentType]
        room, me = Room.of(MOST, 0.1, 0.0), ("tiny", "me")
        read, now_s = lambda: self.figures, lambda: self.now_s
        self.lender = Lender(bus, me, room, self.slots, self.rollout, self.engine, read, now_s)  # pyright: ignore[reportArgumentType]

    async def passes(self, seconds: int, held: float) -> None:
        """Seconds of 100 steps each, in which `held` of eight rollouts were held."""
        for _ in range(seconds):
            before = self.figures or Figures()
            steps, wanted, withheld = before.steps + 100, before.rollout_steps + 800, before.withheld_steps + 100 * held
            self.now_s, self.figures = self.now_s + 1.0, Figures(steps=steps, rollout_steps=wanted, withheld_steps=withheld)
            await self.lender.look()

    async def ask(self, group: GroupContext) -> None:
        subject = streams.sample("tiny", group.task, group.trajectory(0))
        await self.bus.publish(Outgoing(subject, SampleTurns(group=group, members=first_turns(range(group.size))), group.task))


@asynccontextmanager
async def lending(bus: Bus, chat: Chat, folder: Path, *groups: GroupContext) -> AsyncGenerator[Lending]:
    """The replica with the messages of `groups` inside its engine, in this order."""
    found = Lending(bus, chat, folder)
    async with at_work(bus.consume(streams.rollout_samples("tiny"), found.rollout.handle, found.slots)):
        inside = 0
        for group in groups:
            inside += group.size
            await found.ask(group)
            await eventually(lambda inside=inside: len(found.engine.tokens) == inside)
        yield found


async def reports(bus: Bus, total: int, **busy: float) -> None:
    report = ReplicaReport(replica="other", service="rollout", pool="tiny", sequences=total, busy={"sequences": 0.0, **busy})
    await bus.kv.put(REPLICAS_BUCKET, "rollout.other", report)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "adapters"


async def test_replica_requests_no_more_than_serving_leaves(bus: Bus, chat: Chat, folder: Path) -> None:
    async with lending(bus, chat, folder, group_of("begun", size=6, deadline_s=1e10)) as replica:
        await replica.passes(12, held=6.0)
        assert replica.lender.room.sequences == 2
        assert (replica.slots.free, replica.slots.used) == (0, 6)
        assert replica.lender.withheld == pytest.approx(6 + 6.0)
        await replica.ask(group_of("waits", size=1, deadline_s=1e10))
        for _ in range(3):  # each answer comes after all that was sent before
            assert (await bus.streams.queue(streams.rollout_samples("tiny"))).pending == 1
        await replica.passes(30, held=0.0)
        assert (replica.lender.room.sequences, replica.lender.withheld) == (MOST, 0.0)
        await eventually(lambda: len(replica.engine.tokens) == 7)


async def test_replica_without_figures_takes_all(bus: Bus, chat: Chat, folder: Path) -> None:
    async with lending(bus, chat, folder) as replica:
        replica.figures = None
        for replica.now_s in range(30):
            await replica.lender.look()
        assert (replica.slots.free, replica.lender.withheld) == (MOST, 0.0)


async def test_stalled_message_goes_to_another_replica_once(bus: Bus, nats_url: str, chat: Chat, folder: Path) -> None:
    sibling = Sibling(nats_url)
    async with lending(bus, chat, folder, group_of("held", size=3, deadline_s=1e10)) as replica:
        await reports(bus, 64)
        async with sibling.takes():
            await replica.passes(2, held=3.0)
            assert sibling.taken == []
            await replica.passes(1, held=3.0)
            await eventually(lambda: sibling.taken == [(3, 2)])
            await replica.passes(int(HANDED_BACK_S) - 1, held=3.0)
            assert replica.slots.free == 0, "not this replica's own again"
            await eventually(lambda: _drained(bus))
            await replica.passes(1, held=3.0)
            assert replica.slots.free == replica.lender.room.sequences


async def test_message_that_comes_back_stays(bus: Bus, nats_url: str, chat: Chat, folder: Path) -> None:
    """Two replicas that tossed it to and fro would make it a dead letter."""
    sibling = Sibling(nats_url)
    sibling.keeps = True
    async with lending(bus, chat, folder, group_of("held", size=3, deadline_s=1e10)) as replica:
        await reports(bus, 64)
        async with sibling.takes():
            await replica.passes(3, held=3.0)
            await eventually(lambda: sibling.taken[:1] == [(3, 2)])
        await replica.passes(int(HANDED_BACK_S), held=3.0)
        await eventually(lambda: len(replica.engine.tokens) == 3)
        async with sibling.takes():
            came = len(sibling.taken)
            await replica.passes(30, held=3.0)
            assert len(replica.engine.tokens) == 3 and len(sibling.taken) == came


async def test_newest_messages_go_as_far_as_the_other_has_room(bus: Bus, nats_url: str, chat: Chat, folder: Path) -> None:
    sibling = Sibling(nats_url)
    groups = [group_of(task, size=size, deadline_s=1e10) for task, size in (("old", 2), ("large", 3), ("new", 2))]
    async with lending(bus, chat, folder, *groups) as replica:
        await reports(bus, 8, sequences=2.0)
        async with sibling.takes():
            await replica.passes(3, held=7.0)
            await eventually(lambda: len(sibling.taken) == 2)
            assert sorted(members for members, _ in sibling.taken) == [2, 2], "the large one does not fit into four"
            assert {one.split(":")[0] for one in replica.engine.tokens} == {"large"}


@pytest.mark.parametrize("case", ["full", "parked", "answered", "moving", "running", "closed", "nothing held"])
async def test_message_stays(bus: Bus, chat: Chat, folder: Path, case: str) -> None:
    async with lending(bus, chat, folder, group_of("held", size=2, deadline_s=1e10)) as replica:
        held = 0.5 if case == "nothing held" else 4.0
        busy = {"full": {"sequences": 47.0}, "parked": {AWAKE: 0.0}}.get(case, {})
        await reports(bus, 64, **busy)
        first, second = replica.engine.tokens
        if case == "answered":
            replica.engine.end(first)
            await eventually(lambda: not replica.rollout.unanswered_messages)
        if case == "closed":
            replica.slots.close()
        for _ in range(10):
            if case in ("moving", "running"):  # one of its turns, or both
                replica.engine.tokens[second] += 1
                replica.engine.tokens[first] += case == "running"
            await replica.passes(1, held)
        assert second in replica.engine.tokens
        assert replica.slots.used == (1 if case == "answered" else 2)


async def test_message_that_is_answered_while_reports_are_read_stays(bus: Bus, chat: Chat, folder: Path) -> None:
    async with lending(bus, chat, folder, group_of("held", size=2, deadline_s=1e10)) as replica:
        await reports(bus, 64)
        first, second = replica.engine.tokens

        async def values(*asked: Any) -> Any:
            if first in replica.engine.tokens:
                replica.engine.end(first)
                await eventually(lambda: not replica.rollout.unanswered_messages)
            return await bus.kv.values(*asked)

        replica.lender._bus = SimpleNamespace(kv=SimpleNamespace(values=values))  # pyright: ignore[reportAttributeAccessIssue]
        await replica.passes(5, held=4.0)
        assert list(replica.engine.tokens) == [second]


def test_room_elsewhere_is_that_of_awake_samplers_of_the_pool() -> None:
    def report(replica: str, pool: str = "tiny", service: str = "rollout", **busy: float) -> ReplicaReport:
        return ReplicaReport(replica=replica, service=service, pool=pool, sequences=64, busy=busy)  # type: ignore[arg-type]

    assert room_elsewhere([report("me", sequences=0.0)], "tiny", "me") == 0.0
    assert room_elsewhere([report("other", sequences=40.0)], "tiny", "me") == 8.0
    assert room_elsewhere([report("other", sequences=60.0), report("third", sequences=47.0)], "tiny", "me") == 1.0
    assert room_elsewhere([report("silent")], "tiny", "me") == 0.0
    assert room_elsewhere([report("other", "large", sequences=0.0), report("it", service="trainer", sequences=0.0)], "tiny", "me") == 0.0
    assert room_elsewhere([report("parked", messages=0.0, sequences=0.0)], "tiny", "me") == 0.0


async def _drained(bus: Bus) -> bool:
    return await bus.streams.backlog(streams.PROMPTS) == 0
