"""Deadlines and their clocks: PostgreSQL's, NATS's, and this process's monotonic one."""

import time

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.errors import Unavailable
from common.messages import PoolClock
from common.messages.status import WITHHELD
from scheduler_svc.base.database import Database
from scheduler_svc.training.decisions.pool_load import OversubscriptionController, PoolLoad, PoolTimes
from scheduler_svc.training.queries import deadlines
from scheduler_svc.upkeep.stalls import JUMP_S, StabilityMonitor
from tests.scheduler.wire import database_behind_wire
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.scheduler.statements import execute
from tests.support.waiting import eventually

HOUR_S = 3600.0
TIMEOUT_S = 60.0
NOW_S = 2e9


@pytest.mark.parametrize(
    ("age_s", "nats_ahead_s", "postgres_ahead_s", "is_overdue"),
    [
        (0.0, 0.0, 0.0, False),
        (TIMEOUT_S + 1, 0.0, 0.0, True),
        (0.0, HOUR_S, 0.0, False),
        (0.0, 0.0, HOUR_S, False),
        (0.0, -HOUR_S, 0.0, False),
        (0.0, 0.0, -HOUR_S, False),
        (TIMEOUT_S + 1, -HOUR_S, 0.0, True),
        (TIMEOUT_S + 1, 0.0, -HOUR_S, True),
        (TIMEOUT_S + 1, HOUR_S, 0.0, True),
        (TIMEOUT_S + 1, 0.0, HOUR_S, True),
    ],
)
async def test_one_clock_that_jumps_decides_nothing(
    database: Database, age_s: float, nats_ahead_s: float, postgres_ahead_s: float, is_overdue: bool
) -> None:
    """A group was admitted `age_s` ago; then a clock jumped."""
    async with database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        await tx.connection.execute(
            text(
                "INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step,"
                " max_staleness, trajectory_tokens, admitted) VALUES ('', 'a', 'acme', 'a', 'tiny',"
                " jsonb_build_object('limits', jsonb_build_object('episode_timeout_s', cast(:timeout_s AS float8))),"
                " 'running', 0, 1, 2, 1, 0, 1, 1)"
            ),
            {"timeout_s": TIMEOUT_S},
        )
        await tx.connection.execute(
            text(
                'INSERT INTO groups (size, task, number, version, state, "row", seed, charged_tokens, deadline_at, admitted_at) VALUES'
                " (2, 'a', 0, 0, 'open', 0, 0, 0, to_timestamp(:deadline_s), now() - make_interval(secs => :age_s))"
            ),
            {"deadline_s": NOW_S + TIMEOUT_S - age_s - nats_ahead_s, "age_s": age_s + postgres_ahead_s},
        )
        assert await deadlines.overdue_groups(tx.connection, NOW_S) == ([("a", 0)] if is_overdue else [])


@pytest.mark.parametrize(
    ("parked_ms", "parked_for_s", "at_admission_ms", "is_overdue"),
    [(0, None, 0, True), (0, 2.0, 0, False), (2000, None, 0, False), (2000, None, 2000, True), (900, 0.05, 0, True)],
)
async def test_deadline_does_not_pass_while_the_pool_is_parked(
    database: Database, parked_ms: int, parked_for_s: float | None, at_admission_ms: int, is_overdue: bool
) -> None:
    """Groups of training and of an evaluation are late by a second, less what the pool was parked since."""
    async with database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme')"))
        for statement in (
            "INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step,"
            " max_staleness, trajectory_tokens, admitted) VALUES ('', 'a', 'acme', 'a', 'tiny',"
            " jsonb_build_object('limits', jsonb_build_object('episode_timeout_s', cast(:timeout_s AS float8))),"
            " 'running', 0, 1, 2, 1, 0, 1, 1)",
            "INSERT INTO pool_clocks (pool, parked_ms, parked_since) VALUES ('tiny', :parked_ms,"
            " to_timestamp(:now_s) - make_interval(secs => :parked_for_s))",
            'INSERT INTO groups (size, task, number, version, state, "row", seed, charged_tokens, deadline_at, admitted_at, parked_ms)'
            " VALUES (2, 'a', 0, 0, 'open', 0, 0, 0, to_timestamp(:now_s - 1 - :at_admission_ms / 1000.0),"
            " now() - make_interval(secs => :timeout_s + 1), :at_admission_ms)",
            "INSERT INTO evaluations (task, version, state) VALUES ('a', 0, 'running')",
            "INSERT INTO groups (task, number, version, protocol, row, seed, size, state, charged_tokens, deadline_at) VALUES"
            " ('a', 1000000000, 0, 'main', 2147483648, 0, 1, 'open', 0, to_timestamp(:now_s - 1 - :at_admission_ms / 1000.0))",
        ):
            values = {"timeout_s": TIMEOUT_S, "now_s": NOW_S, "parked_ms": parked_ms, "parked_for_s": parked_for_s}
            await tx.connection.execute(text(statement), values | {"at_admission_ms": at_admission_ms})
        assert await deadlines.overdue_groups(tx.connection, NOW_S) == ([("a", 0)] if is_overdue else [])
        assert await deadlines.overdue_evaluation_groups(tx.connection, NOW_S) == ([("a", 10**9)] if is_overdue else [])
        spent = await deadlines.time_spent(tx.connection, NOW_S)
        assert (spent["tiny"] > 1) == is_overdue
        if parked_for_s is None:  # else NATS's clock that jumps moves the pool's parked time too
            jumped = await deadlines.overdue_groups(tx.connection, NOW_S + HOUR_S)
            assert jumped == ([("a", 0)] if is_overdue else []), "PostgreSQL's clock has to agree, less the same time"


async def test_groups_of_a_pool_have_deadlines_on_its_clock(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        world.scheduler._shares_samplers = True
        await world.execute("INSERT INTO pool_clocks (pool, parked_ms, parked_since) VALUES ('tiny', 5000, now() - interval '1 hour')")
        await world.submit("a", spec(limits={"episode_timeout_s": 0.5}))
        await eventually(lambda: len(world.stages.opened) > 0)
        (row,) = await world.rows("SELECT parked_ms, extract(epoch FROM admitted_at) AS admitted_s FROM groups WHERE number = 0")
        assert row.parked_ms == pytest.approx(3_605_000, abs=30_000)
        first = world.stages.opened[0]
        assert first.deadline_s == pytest.approx(float(row.admitted_s) - row.parked_ms / 1000 + 0.5, abs=30.0)
        await world.execute("UPDATE pool_clocks SET parked_ms = parked_ms + 3600000, parked_since = NULL")
        assert "was not finished before limits.episode_timeout_s" in str((await world.event("a", "failed"))["reason"])


async def test_groups_that_time_out_during_disturbances_do_not_fail_their_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group < 12)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()
        await world.run("a", spec(limits={"episode_timeout_s": 2}))
        [(count,)] = await world.rows("SELECT count(*) FROM groups WHERE void_reason = 'deadline'")
        assert count >= 12


async def test_groups_that_time_out_without_disturbances_fail_their_task(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.submit("a", spec(limits={"episode_timeout_s": 0.8}))
        assert "was not finished before limits.episode_timeout_s" in str((await world.event("a", "failed"))["reason"])


async def test_late_groups_of_a_pool_that_withholds_sequences_are_no_failures(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group < 12)
    async with running_world(bus, database_url, stages) as world:
        world.rollout = world.rollout.model_copy(update={"busy": {WITHHELD: 8.0}})
        await world.make_room(64)
        await eventually(lambda: [one.withheld for one in world.scheduler._replicas.samplers.values()] == [8.0])
        await world.run("a", spec(limits={"episode_timeout_s": 2}))
        [(count,)] = await world.rows("SELECT count(*) FROM groups WHERE void_reason = 'deadline'")
        assert count >= 12


class Watched(OversubscriptionController):
    """Keeps what it has observed."""

    def __init__(self) -> None:
        super().__init__(1.5, 8.0)
        self.seen: list[PoolLoad | None] = []

    def observe(self, pool: str, seen: PoolLoad | None, now_s: float) -> None:
        self.seen.append(seen)
        super().observe(pool, seen, now_s)


async def test_oversubscription_observes_nothing_while_a_pool_withholds_sequences(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        watched = world.scheduler._oversubscription = Watched()
        for withheld, is_observed in ((8.0, False), (0.9, True), (1.0, False)):
            world.rollout = world.rollout.model_copy(update={"busy": {WITHHELD: withheld}})
            await eventually(lambda withheld=withheld: [one.withheld for one in world.scheduler._replicas.samplers.values()] == [withheld])
            watched.seen.clear()
            await world.scheduler.tick()
            assert watched.seen and all((seen is not None) == is_observed for seen in watched.seen)


async def test_clock_jump_or_new_replica_resets_the_stability_monitor(bus: Bus) -> None:
    alive = {"rollout-1"}
    monitor = StabilityMonitor(bus, lambda: frozenset(alive))
    monitor._since -= 100
    assert monitor.stable_for_s() >= 100
    bus.clock._ahead_s += JUMP_S + 1
    assert monitor.stable_for_s() < 100
    monitor._since -= 100
    alive.add("rollout-2")
    assert monitor.stable_for_s() < 100
    monitor._since -= 100
    assert monitor.stable_for_s() >= 100


async def test_stability_is_in_the_time_of_each_pool(bus: Bus) -> None:
    monitor = StabilityMonitor(bus, lambda: frozenset({"rollout-1"}))
    before = PoolTimes(1000.0, {"parked": PoolClock(parked_s=500.0)})
    assert monitor.stable_in(before, set())("parked") < 100
    monitor._since, monitor._noted = monitor._since - 100, monitor._since - 100
    later = PoolTimes(1100.0, {"parked": PoolClock(parked_s=500.0, parked_since_s=1040.0)})
    stable_for_s = monitor.stable_in(later, set())
    assert stable_for_s("parked") == pytest.approx(stable_for_s("other") - 60)
    assert stable_for_s("other") >= 100
    monitor.reset()
    stable_for_s = monitor.stable_in(later, set())
    assert stable_for_s("parked") == stable_for_s("other") < 100


async def test_only_the_pool_that_withholds_is_disturbed_and_for_as_long_as_it_was(bus: Bus) -> None:
    monitor, times = StabilityMonitor(bus, lambda: frozenset({"rollout-1"})), PoolTimes(1000.0)
    monitor._since -= 100
    stable_for_s = monitor.stable_in(times, {"chats"})
    assert stable_for_s("chats") == 0.0 and stable_for_s("other") >= 100
    monitor._withheld["chats"] -= 50
    stable_for_s = monitor.stable_in(times, set())
    assert stable_for_s("chats") == pytest.approx(50, abs=1) and stable_for_s("other") >= 100


async def test_unresponsive_postgres_is_reported_as_unavailable(database_url: str) -> None:
    async with database_behind_wire(database_url, patience_s=0.5) as (database, wire):
        wire.silence()
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s"):
            await execute(database, "SELECT 1")
        assert time.monotonic() - started < 20
        database._patience_s = 60.0
        wire.speak()
        async with database.transaction() as tx:
            assert (await tx.connection.execute(text("SELECT 1"))).scalar_one() == 1
