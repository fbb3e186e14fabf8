"""Events are followed without loss or repetition, whatever the network does to the live ones."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from common import streams
from common.bus import Bus
from common.client_api.asking import Door
from common.client_api.training.following import follow
from common.messages import Event
from scheduler_svc.base.database import Database
from scheduler_svc.upkeep import outbox
from tests.support.scheduler.asking import answering
from tests.support.waiting import eventually


@pytest.fixture
async def database(database_url: str) -> AsyncGenerator[Database]:
    async with await Database.connect(database_url) as database:
        yield database


class Happening:
    """Events as the scheduler records them; a test decides which of them arrive live, and how often."""

    def __init__(self, bus: Bus, database: Database) -> None:
        self._bus = bus
        self._database = database

    async def record(self, task: str, *names: str, tenant: str = "acme", arrive: int = 1) -> None:
        """`arrive`: how often each arrives."""
        async with self._database.transaction() as tx:
            for name in names:
                tx.emit_event(tenant, task, name)
        async with self._database.transaction() as tx:
            rows = await outbox.oldest_rows(tx.connection, 100)
            await outbox.delivered(tx.connection, [row.id for row in rows])
        for row in rows * arrive:
            await self._bus.publish_raw(row.subject, row.body, f"outbox:{row.id}", row.headers)


@pytest.fixture
async def happening(bus: Bus, database: Database) -> AsyncGenerator[Happening]:
    async with answering(bus, database):
        yield Happening(bus, database)


class Follower:
    def __init__(self, door: Door, *tasks: str, from_now: bool = False, recheck_s: float = 600.0) -> None:
        self.seen: list[Event] = []
        self._events = follow(door, tasks, from_now=from_now, recheck_s=recheck_s)
        self.running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for event in self._events:
            self.seen.append(event)

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.seen]

    async def saw(self, count: int) -> None:
        await eventually(lambda: self.running.done() or len(self.seen) >= count, 60)
        if self.running.done():
            self.running.result()


async def test_past_and_future_come_once_and_in_order(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted", "paused")
    follower = Follower(Door(bus, "", "acme"), "a")
    await follower.saw(2)
    await happening.record("a", "resumed", "paused", arrive=3)
    await happening.record("a", "finished", arrive=2)
    await asyncio.wait_for(follower.running, 60)
    assert follower.names == ["accepted", "paused", "resumed", "paused", "finished"]
    assert [event.number for event in follower.seen] == [1, 2, 3, 4, 5]


async def test_event_that_was_lost_is_asked_for_when_the_next_arrives(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted")
    follower = Follower(Door(bus, "", "acme"), "a")
    await follower.saw(1)
    await happening.record("a", "paused", "resumed", arrive=0)
    assert follower.names == ["accepted"]
    await happening.record("a", "finished")
    await asyncio.wait_for(follower.running, 60)
    assert follower.names == ["accepted", "paused", "resumed", "finished"]


async def test_last_event_that_was_lost_is_asked_for_after_a_while(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted")
    follower = Follower(Door(bus, "", "acme"), "a", recheck_s=0.2)
    await follower.saw(1)
    await happening.record("a", "finished", arrive=0)
    await asyncio.wait_for(follower.running, 60)
    assert follower.names == ["accepted", "finished"]


async def test_from_now_leaves_the_past_out_and_ends_with_the_tasks(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted")
    await happening.record("b", "accepted", "paused")
    follower = Follower(Door(bus, "", "acme"), "a", "b", from_now=True, recheck_s=0.2)
    await eventually(lambda: _hears(happening, follower, "b"))
    follower.seen.clear()
    await happening.record("other", "accepted")
    await happening.record("b", "finished")
    await follower.saw(1)
    await happening.record("a", "finished")
    await asyncio.wait_for(follower.running, 60)
    assert [(event.task, event.event) for event in follower.seen if event.event != "resumed"] == [("b", "finished"), ("a", "finished")]


@pytest.mark.parametrize("tenant", ["acme", None])
async def test_everything_from_now_on_with_gaps_filled(bus: Bus, happening: Happening, tenant: str | None) -> None:
    await happening.record("a", "accepted")
    follower = Follower(Door(bus, "", tenant))
    await eventually(lambda: _hears(happening, follower, "probe"))
    follower.seen.clear()
    await happening.record("a", "paused")
    await follower.saw(1)
    await happening.record("a", "resumed", arrive=0)
    await happening.record("a", "paused")
    await happening.record("a", "accepted", tenant="globex")
    await happening.record("z", "accepted")
    await eventually(lambda: any(event.task == "z" for event in follower.seen), 60)
    found = [(event.tenant, event.task, event.event) for event in follower.seen if event.task != "probe"]
    ours = [("acme", "a", "paused"), ("acme", "a", "resumed"), ("acme", "a", "paused"), ("acme", "z", "accepted")]
    assert found == ours, "an event of another tenant under the same id is none of that task"
    follower.running.cancel()


async def _hears(happening: Happening, follower: Follower, task: str) -> bool:
    await happening.record(task, "resumed")
    await asyncio.sleep(0.05)
    return bool(follower.seen)


async def test_another_submission_under_the_id_does_not_end_it(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted", "rejected", "paused", "finished")
    follower = Follower(Door(bus, "", "acme"), "a")
    await asyncio.wait_for(follower.running, 60)
    assert follower.names == ["accepted", "rejected", "paused", "finished"]


async def test_follower_goes_on_while_no_scheduler_answers(bus: Bus, database: Database) -> None:
    door = Door(bus, "", "acme", patience_s=0.1)
    happening = Happening(bus, database)
    async with answering(bus, database):
        await happening.record("a", "accepted")
        follower = Follower(door, "a", recheck_s=0.1)
        await follower.saw(1)
    await happening.record("a", "paused", arrive=0)
    await asyncio.sleep(0.5)
    await happening.record("a", "resumed")
    await follower.saw(2)
    async with answering(bus, database):
        await happening.record("a", "finished")
        await asyncio.wait_for(follower.running, 60)
    assert follower.names[0] == "accepted" and follower.names[-1] == "finished"


async def test_garbage_on_the_subject_is_left_out(bus: Bus, happening: Happening) -> None:
    await happening.record("a", "accepted")
    follower = Follower(Door(bus, "", "acme"), "a")
    await follower.saw(1)
    await bus.publish_raw(streams.events("acme", "a"), b"garbage", "garbage", {})
    await happening.record("a", "finished")
    await asyncio.wait_for(follower.running, 60)
    assert follower.names == ["accepted", "finished"]
