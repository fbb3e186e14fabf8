"""Deadlines and their clocks: PostgreSQL's, NATS's, and this process's monotonic one."""

import time

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.errors import Unavailable
from scheduler_svc.maintenance.stability import JUMP_S, StabilityMonitor
from scheduler_svc.store.database import Database
from scheduler_svc.store.queries.training import groups
from tests.scheduler.stages import Stages, running_world, spec
from tests.scheduler.wire import database_behind_wire

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
                "INSERT INTO tasks (id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,"
                " trajectory_tokens, admitted) VALUES ('a', 'acme', 'a', 'tiny',"
                " jsonb_build_object('limits', jsonb_build_object('episode_timeout_s', cast(:timeout_s AS float8))),"
                " 'running', 0, 1, 2, 1, 0, 1, 1)"
            ),
            {"timeout_s": TIMEOUT_S},
        )
        await tx.connection.execute(
            text(
                'INSERT INTO groups (task, number, version, state, "row", seed, charged_tokens, deadline_at, admitted_at) VALUES'
                " ('a', 0, 0, 'open', 0, 0, 0, to_timestamp(:deadline_s), now() - make_interval(secs => :age_s))"
            ),
            {"deadline_s": NOW_S + TIMEOUT_S - age_s - nats_ahead_s, "age_s": age_s + postgres_ahead_s},
        )
        assert await groups.overdue_groups(tx.connection, NOW_S) == ([("a", 0)] if is_overdue else [])


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


async def test_unresponsive_postgres_is_reported_as_unavailable(database_url: str) -> None:
    async with database_behind_wire(database_url, patience_s=0.5) as (database, wire):
        wire.silence()
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"did not answer within 0\.5 s"):
            async with database.transaction() as tx:
                await tx.connection.execute(text("SELECT 1"))
        assert time.monotonic() - started < 20
        database._patience_s = 60.0
        wire.speak()
        async with database.transaction() as tx:
            assert (await tx.connection.execute(text("SELECT 1"))).scalar_one() == 1
