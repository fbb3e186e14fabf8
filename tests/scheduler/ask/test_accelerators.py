"""What the deployment and its tenants learn about shared accelerators: views of PostgreSQL, and the asks that they answer."""

import threading
import time
from collections.abc import Sequence

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.client_api.deployment import trace_of
from common.messages import (
    BudgetsAnswer,
    ExecutorsAnswer,
    InvoiceAnswer,
    MovesAnswer,
    PoolsAnswer,
    ReplicaReport,
    SlicesAnswer,
    TraceAnswer,
    UsageAnswer,
)
from common.pools import named_replicas
from scheduler_svc.accelerators.asked import accelerator_waits
from scheduler_svc.accelerators.decisions.load import Occupancy, Trajectory, occupancy
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.training.homes import Homes
from tests.scheduler.accelerators.reports import report
from tests.support.scheduler.asking import answering, asker
from tests.support.scheduler.shared_accelerator import SHARED, fill
from tests.support.scheduler.stages import POOLS
from tests.support.scheduler.statements import execute, select


@pytest.fixture
async def filled(database: Database) -> Database:
    await fill(database)
    return database


async def test_slices_of_a_tenant_are_those_that_served_it_with_its_own_shares(bus: Bus, nats_url: str, filled: Database) -> None:
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        every = await asks.ask(SlicesAnswer, None, "slices")
        assert [(one.epoch, {share.task: share.ms for share in one.shares}) for one in every.slices] == [
            (3, {}), (2, {"y": 5000}), (1, {"x": 4000, "y": 1000}),
        ]  # fmt: skip
        assert (every.before, every.slices[0].ended, every.slices[0].switch_ms, every.slices[1].switch_ms) == (None, None, None, 1000)
        acme, globex = [(await asks.ask(SlicesAnswer, tenant, "slices")).slices for tenant in ("acme", "globex")]
        assert [(one.epoch, [share.task for share in one.shares]) for one in acme] == [(1, ["x"])]
        assert [(one.epoch, [share.task for share in one.shares]) for one in globex] == [(2, ["y"]), (1, ["y"])]
        pages, before = list[int](), None
        while True:
            page = await asks.ask(SlicesAnswer, None, "slices", most=1, before=before)
            pages += [one.epoch for one in page.slices]
            before = page.before
            if before is None:
                break
        assert pages == [3, 2, 1]
        late = await asks.ask(SlicesAnswer, None, "slices", since_s=every.slices[0].ordered_s)
        assert [one.epoch for one in late.slices] == [3]


async def test_parked_sampler_whose_open_groups_are_with_environments_waits_for_nothing(filled: Database) -> None:
    await execute(filled, "UPDATE executors SET ready_since = NULL")
    assert await select(filled, "SELECT waiting_since FROM pool_status WHERE executor = 'rollout-other'") == [(None,)]


async def test_executors_say_where_their_state_is_who_waits_and_what_waking_costs(bus: Bus, nats_url: str, filled: Database) -> None:
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        answer = await asks.ask(ExecutorsAnswer, None, "executors")
        by_name = {one.executor: one for one in answer.executors}
        assert {name: (one.state.value, one.tier.value, one.is_holder) for name, one in by_name.items()} == {
            "rollout-other": ("parked", "host", False), "rollout-tiny": ("awake", "device", True),
            "trainer-other": ("faulty", "disk", False), "trainer-tiny": ("parked", "host", False),
        }  # fmt: skip
        other, tiny = by_name["rollout-other"], by_name["rollout-tiny"]
        assert other.waiting_since_s is not None and tiny.waiting_since_s is None
        assert other.since_s is not None and 20 < other.since_s - other.waiting_since_s < 40, "since it reports work"
        assert (by_name["trainer-tiny"].wake_s, by_name["trainer-tiny"].is_measured) == (pytest.approx(0.505), True)
        assert (other.wake_s, other.is_measured) == (pytest.approx(1.1), False), "8 GiB at 8 GiB/s"
        assert (tiny.wake_s, tiny.parked_s) == (None, 7.0) and other.parked_s == pytest.approx(61.0, abs=20)
        assert "secret" in (by_name["trainer-other"].fault or "") and other.device_bytes == 2**33
        shown = (await asks.ask(ExecutorsAnswer, "acme", "executors")).executors
        assert [(one.fault, one.retry_s, one.device_bytes, one.host_bytes) for one in shown] == [(None, None, 0, 0)] * 4
        assert [one.executor for one in (await asks.ask(ExecutorsAnswer, None, "executors", pool="tiny")).executors] == [
            "rollout-tiny", "trainer-tiny",
        ]  # fmt: skip
        pools = {one.name: one for one in (await asks.ask(PoolsAnswer, "acme", "pools")).pools}
        assert (pools["tiny"].accelerators, pools["tiny"].is_parked, pools["tiny"].wakes_in_s) == (["a"], False, None)
        assert (pools["other"].is_parked, pools["other"].wakes_in_s) == (True, pytest.approx(1.1))
        assert pools["other"].parked_since_s is not None


async def test_executor_that_does_not_fit_is_said_by_all_who_are_asked(bus: Bus, nats_url: str, filled: Database) -> None:
    line = "rollout-other needs 8589934592 bytes (8.00 GiB) on the device, and accelerator 'a' has 7.50 GiB for all its executors"
    async with filled.transaction() as tx:
        await tx.connection.execute(text("""UPDATE accelerators SET spec = '{"memory_gib": 7.5}'"""))
        (found,) = [one for one in await examine_database(tx.connection) if "fits on its accelerator" in one.rule]
        assert found.where == "accelerator=a executor=rollout-other needed_bytes=8589934592 has_bytes=8053063680"
        assert all(setting in found.rule for setting in ("memory_gib", "kv_cache_gib", "gpu_memory_share", "train_tokens"))
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        executors = {one.executor: one for one in (await asks.ask(ExecutorsAnswer, None, "executors")).executors}
        assert (executors["rollout-other"].fault or "").startswith(line) and executors["rollout-other"].wake_s is None
        assert executors["rollout-tiny"].fault is None
        pools = {one.name: one for one in (await asks.ask(PoolsAnswer, "acme", "pools")).pools}
        assert (pools["other"].is_parked, pools["other"].wakes_in_s) == (True, None)
    async with filled.transaction() as tx:
        assert (await accelerator_waits(tx.connection, "tiny")).get("rollout") is None
        wait = (await accelerator_waits(tx.connection, "other"))["rollout"]
        assert wait.misfit is not None and wait.misfit.sentence.startswith(line)
        assert wait.misfit.sentence.endswith("or lower kv_cache_gib (on a GPU gpu_memory_share) of [other]")


async def test_moves_and_traces_are_for_operators(bus: Bus, nats_url: str, filled: Database) -> None:
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        [move] = (await asks.ask(MovesAnswer, None, "moves")).moves
        assert (move.n, move.p50_s, move.p90_s) == (100, pytest.approx(0.505), pytest.approx(0.901))
        assert move.bytes_per_s == pytest.approx(100 * 50 / 50.5)
        trace = await asks.ask(TraceAnswer, None, "trace")
        assert trace.cursor is None
        x, y = [(one.task, one.steps[0]) for one in trace.tasks]
        assert (x[0], x[1].generate_s, x[1].environment_s, x[1].train_s) == ("x", pytest.approx(34.5), 20.0, 2.0)
        assert (y[0], y[1].generate_s, y[1].environment_s) == ("y", pytest.approx(0.6 + 3.0 / 4), pytest.approx(1.5)), (
            "the busy part of the slices that served it; the second one was awake for one of its four seconds before the last score"
        )
        assert (x[1].turns, y[1].turns) == (2, 1), "none were counted for the second"
        phases = {one.task: one.steps[0] for one in trace_of([], [], trace.tasks).tasks}
        turn = (("generate", pytest.approx(17.25)), ("environment", 10.0))
        assert phases["x"] == (*turn, *turn, ("train", 2.0)), "as often as it had turns"
        for verb in ("moves", "trace"):
            code, reason = await asks.refused("acme", verb)
            assert code == "invalid" and "only operators" in reason


TRAINED = """
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, to_tier, ordered_at, awake_at,
    ended_at, ended, booked_at, switch_ms, busy_ms, idle_ms, score_ms)
    SELECT 'a', 3 + n, 'trainer-' || pool, pool, 'train', 'ratio', ARRAY['x'], 1, 'host', 'host', at, at + interval '1 second',
           at + interval '6 seconds', 'switched', now(), 1000, 4000, 1000, score_ms
    FROM (VALUES (1, 'tiny', 1000, '1.5 seconds'), (2, 'other', NULL, '10 seconds')) v (n, pool, score_ms, before),
         LATERAL (SELECT date_trunc('hour', now()) - interval '10 hours' - before::interval AS at) b;
UPDATE steps SET metrics = '{"score_s": 0.5}' WHERE task = 'x';
UPDATE steps SET metrics = '{"score_s": 1e9}' WHERE task = 'y'
"""


async def test_seconds_of_a_trainer_are_told_apart_into_train_and_score(bus: Bus, nats_url: str, filled: Database) -> None:
    await execute(filled, *TRAINED.split(";\n"))
    columns = "slices, switch_s::float8, awake_s::float8, busy_s::float8, idle_s::float8"
    use = f"SELECT pool, function, {columns} FROM accelerator_use WHERE function <> 'generate' ORDER BY pool, function, hour"
    train = [("tiny", "train", 1, 1.0, 0.4, 0.3, 0.1), ("tiny", "train", 1, 0.0, 3.6, 2.7, 0.9)]
    score = [("tiny", "score", 0, 0.0, 0.1, 0.1, 0.0), ("tiny", "score", 0, 0.0, 0.9, 0.9, 0.0)]
    before = ("other", "train", 1, 1.0, 5.0, 4.0, 1.0)  # a slice of before it was measured
    assert await select(filled, use) == [before, *score, *train]
    assert await select(filled, "SELECT epoch, busy_s::float8, score_s::float8 FROM accelerator_slices WHERE epoch > 3 ORDER BY 1") == [
        (4, 4.0, 1.0), (5, 4.0, None),
    ]  # fmt: skip
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        slices = (await asks.ask(SlicesAnswer, None, "slices")).slices
        assert {one.epoch: one.score_ms for one in slices} == {5: None, 4: 1000, 3: None, 2: None, 1: None}
        trace = await asks.ask(TraceAnswer, None, "trace")
        x, y = [one.steps[0] for one in trace.tasks]
        assert (x.score_s, x.train_s) == (0.5, 1.5)
        assert (y.score_s, y.train_s) == (2.0, 0.0), "of its duration"
        phases = {one.task: one.steps[0] for one in trace_of([], [], trace.tasks).tasks}
        assert phases["x"][-2:] == (("score", 0.5), ("train", 1.5)) and phases["y"][-1] == ("score", 2.0)


async def test_trace_counts_what_is_sampled_during_another_trajectory_s_environment(bus: Bus, nats_url: str, filled: Database) -> None:
    """`x` was sampled for 54.5 - 20 s in two turns; a second trajectory of it is sampled while the first is with its environment."""
    added = """INSERT INTO trajectories (task, "group", member, state, sequence, reward, scored_at, env_ms, away_ms, turns)
               SELECT 'x', 0, 1, 'trained', 3, 1, admitted_at + interval '36 seconds', 0, 4000, 1 FROM groups
               WHERE task = 'x' AND number = 0 RETURNING member"""
    await select(filled, added)
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        [x, _] = [one.steps[0] for one in (await asks.ask(TraceAnswer, None, "trace")).tasks]
    assert x.generate_s + x.environment_s == pytest.approx(54.5), "as the longest trajectory"
    assert x.generate_s > 34.5 + 4.0, "both together need the sampler for longer than the first alone"


async def test_what_is_computed_of_steps_leaves_the_event_loop_free(
    bus: Bus, nats_url: str, filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of steps of hundreds of trajectories take seconds."""
    threads = list[threading.Thread]()

    def noted(trajectories: Sequence[Trajectory], generate_s: float | None = None) -> Occupancy:
        threads.append(threading.current_thread())
        return occupancy(trajectories, generate_s)

    monkeypatch.setattr("scheduler_svc.accelerators.asked.occupancy", noted)
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        await asks.ask(TraceAnswer, None, "trace")
    assert len(threads) == 2
    several, readers = {"tiny": POOLS["tiny"].model_copy(update={"train_on": ("a", "b")})}, list[ReplicaReport]()
    homes = Homes(filled, named_replicas(several), lambda: readers, time.time)
    for _ in range(3):  # no executor has registered on `b`: the task has no home, and is looked at whenever who reads has changed
        await homes.look()
        readers = [] if readers else [report("trainer", "b")]
    assert len(threads) == 3, "the first look alone reads steps"
    assert threading.main_thread() not in threads


async def test_pools_without_accelerators_say_nothing_of_them(bus: Bus, nats_url: str, database: Database) -> None:
    async with answering(bus, database), asker(nats_url) as asks:
        [one] = (await asks.ask(PoolsAnswer, None, "pools")).pools
        assert (one.accelerators, one.is_parked, one.parked_since_s, one.wakes_in_s) == ([], None, None, None)
        assert (await asks.ask(ExecutorsAnswer, None, "executors")).executors == []


async def test_accelerator_time_is_in_usage_and_use_by_hour(bus: Bus, nats_url: str, filled: Database) -> None:
    async with answering(bus, filled, SHARED), asker(nats_url) as asks:
        usage = await asks.ask(UsageAnswer, "globex", "usage")
        assert [one.accelerator_ms for one in usage.tenants] == [6000]
        assert [(one.task, one.accelerator_ms) for one in usage.tasks] == [("y", 6000)]
        await select(filled, "INSERT INTO prices (kind, price, per) VALUES ('accelerator', 2, 1000) RETURNING kind")
        for unit in ("money", "tokens"):
            given = f"VALUES ('globex', 'total', '{unit}', 100, now() - interval '1 day', 0) RETURNING tenant"
            await select(filled, f"INSERT INTO budgets (tenant, period, unit, amount, begins_at, before) {given}")
        new = "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('globex', 'y', 'accelerator', 3, 2500) RETURNING number"
        await select(filled, new)
        spent = {one.unit: one.spent for one in (await asks.ask(BudgetsAnswer, "globex", "budgets")).budgets}
        assert spent == {"money": 5, "tokens": 0}
        [line] = [one for one in (await asks.ask(InvoiceAnswer, "globex", "invoice")).lines if one.money]
        assert (line.kind, line.quantity, line.money) == ("accelerator", 8500, 5)
        await select(filled, "DELETE FROM ledger WHERE number = 3 RETURNING number")
    assert await select(filled, "SELECT tenant, accelerator_s::float8 FROM tenant_usage ORDER BY 1") == [("acme", 4.0), ("globex", 6.0)]
    assert await select(filled, "SELECT DISTINCT parked_s::float8 FROM task_timeline") == [(5.5,)]
    use = "SELECT pool, slices, switch_s::float8, awake_s::float8, busy_s::float8, idle_s::float8 FROM accelerator_use"
    hours = await select(filled, f"{use} WHERE pool = 'other' ORDER BY hour")
    assert hours == [("other", 1, 1.0, 1.0, 0.75, 0.25), ("other", 1, 0.0, 3.0, 2.25, 0.75)], "it began 2 s before the hour"
    whole = "SELECT count(*) FROM accelerator_slices WHERE held_s = 5 AND switch_s + busy_s + idle_s = held_s"
    assert await select(filled, whole) == [(2,)]
