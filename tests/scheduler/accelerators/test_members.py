"""The leader fills a holder's gap that it expects from open members, with real PostgreSQL and NATS."""

from common.accelerators.away import TaskAway
from common.bus import Bus
from scheduler_svc.decisions.accelerators.state import Quantiles
from scheduler_svc.store.queries.accelerators import work
from tests.conftest import eventually
from tests.scheduler.accelerators.executors import SLICES, TWO_TASKS, clean, running_world, task_row

STEP = (
    "INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, first_admitted_at, first_scored_at,"
    " last_scored_at, batched_at{more})"
    " VALUES ('{task}', {version}, '{state}', 0, 0, 0, 9, now(), now(), now(), now() - interval '{ago}'{values})"
)


def away_task(seconds: int, members: int = 2) -> TaskAway:
    """Its members have just left, and members were away for so long."""
    return TaskAway("t1", members, ((0, 100),) * min(4, members), 0, None, (1000 * seconds,), ())


async def test_gap_that_members_announce_is_filled_and_one_of_which_nothing_is_known_is_not(bus: Bus, database_url: str) -> None:
    """The pool was never idle before, so that observed gaps say nothing. Its only members are with a tool that takes a minute."""
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS)
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        await one.has_work(1)
        await one.wakes()
        one.away = [away_task(60)]
        await one.works(t1=1)
        await two.has_work(1)
        await two.wakes()
        await world.becomes(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "backfill", None)])
        two.away = []  # a sampler that reports no members
        await two.works(t2=1)
        await one.has_work(1)
        await one.wakes()
        await world.becomes(
            SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "backfill", "switched"), ("rollout-one", "ratio", None)]
        )
        await clean(world)


async def test_gap_of_a_holder_is_computed_once_it_has_nothing_ready(bus: Bus, database_url: str) -> None:
    """It is read at each look, and is 0 before."""
    async with running_world(bus, database_url) as world:
        one, _ = await world.one_awake()
        leader = world.scheduler._leader
        assert leader is not None

        def gap() -> Quantiles | None:
            live = leader._picture(leader._knowledge.standings["a"], bus.clock.now_s()).executors.get("rollout-one")
            return live.gap if live is not None else None

        one.away = [away_task(60)]
        await one.tell()
        await eventually(lambda: leader._reports.gap("a", "one", bus.clock.now_s()) is not None)
        await eventually(lambda: leader._knowledge.standings["a"].holder is not None)
        assert gap() is None
        await one.works(t1=1)
        await eventually(lambda: gap() is not None)


async def test_observed_gaps_do_not_count_where_members_say_more(bus: Bus, database_url: str) -> None:
    """The pool was idle for moments each time, and now for a minute: with observed gaps alone nothing would fill it."""
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS)
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        await one.has_work(1)
        await one.wakes()
        for _ in range(5):
            await one.works(t1=1)
            await one.has_work(1)
        one.away = [away_task(60)]
        await one.works(t1=1)
        await two.has_work(1)
        await two.wakes()
        await world.becomes(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "backfill", None)])


async def test_batches_of_late_are_found_with_their_age(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS, *task_row("t3", "elsewhere"))
        done = {"more": ", adapter, checkpoint, started_at, finished_at, trained_at", "state": "trained"}
        moments = ", '{{}}', '{{}}', now(), now(), now() - interval '{0}'"
        none = {"more": "", "values": "", "state": "batched"}
        await world.execute(
            STEP.format(task="t1", version=1, ago="30 seconds", values=moments.format("1 second"), **done),
            STEP.format(task="t1", version=0, ago="60 seconds", values=moments.format("20 seconds"), **done),
            STEP.format(task="t2", version=7, ago="3 seconds", **none),
            STEP.format(task="t3", version=7, ago="3 seconds", **none),
        )
        async with world.database.transaction() as tx:
            found = await work.batches(tx.connection, ["one", "two"])
            assert [(one.pool, one.task, one.version) for one in found] == [("one", "t1", 1), ("two", "t2", 7)]
            assert [round(one.ago_s / 10) for one in found] == [3, 0]


async def test_time_until_a_batch_is_learnt_from_those_before(bus: Bus, database_url: str) -> None:
    """A batch came 40 s after the last turn of its step; now all members' last turns are sent again, and their gap is filled."""
    async with running_world(bus, database_url) as world:
        await world.execute(*TWO_TASKS)
        one, two = world.executors["rollout-one"], world.executors["rollout-two"]
        await one.has_work(1)
        await one.wakes()
        left = TaskAway("t1", 2, ((50_000, 0),), 50_000, None, (), ())
        one.away = [left]
        await one.tell()
        await world.execute(STEP.format(task="t1", version=0, ago="10 seconds", more="", values="", state="batched"))
        leader = world.scheduler._leader
        assert leader is not None
        gaps = leader._reports._gaps["a"]
        await eventually(lambda: "t1" in gaps._pools["one"].tasks and len(gaps._pools["one"].tasks["t1"].batch_s) == 1)
        assert 39 < gaps._pools["one"].tasks["t1"].batch_s[0] < 45
        one.away = [TaskAway("t1", 2, ((0, 0),), 0, None, (), ())]
        await one.works(t1=1)
        await two.has_work(1)
        await two.wakes()
        await world.becomes(SLICES, [("rollout-one", "first", "switched"), ("rollout-two", "backfill", None)])
