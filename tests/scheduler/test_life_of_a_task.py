"""A task from submission to its end against real NATS and PostgreSQL."""

import asyncio

from common import streams
from common.bus import Bus, Outgoing
from common.messages import TaskStatus
from tests.scheduler.gated import GatedStages, is_relayed
from tests.support.scheduler.stages import Stages, running_world, scored, spec, updated
from tests.support.waiting import eventually


async def test_task_runs_to_its_end_with_every_step_taken_once(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a", until="accepted")
        assert (await world.event("a", "finished"))["version"] == 3
        assert await world.rows("SELECT version, state FROM steps ORDER BY version") == [(0, "trained"), (1, "trained"), (2, "trained")]
        assert await world.rows("SELECT count(*) FROM groups WHERE state <> 'trained'") == [(0,)]
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state <> 'trained'") == [(0,)]
        assert await world.rows("SELECT kind, sum(tokens) FROM ledger GROUP BY kind ORDER BY kind") == [
            ("prompt", 3 * 2 * 2 * 3),
            ("sampled", 3 * 2 * 2 * 2),
            ("trained", 3 * 7),
        ]
        assert await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus) is not None
        assert [batch.version for batch in world.stages.batches] == [0, 1, 2]


async def test_status_agrees_with_the_row(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        await world.status_becomes("a", lambda status: (status.state, status.version, status.reward) == ("finished", 3, 0.5))
        [row] = await world.rows("SELECT state, version, last_reward, open_groups FROM task_status")
        assert tuple(row) == ("finished", 3, 0.5, 0)


async def test_nothing_sampled_is_staler_than_the_bound(bus: Bus, database_url: str) -> None:
    for bound in (0, 1, 3):
        async with running_world(bus, database_url, Stages()) as world:
            algorithm = {"group_size": 2, "groups_per_step": 2, "max_staleness": bound}
            await world.run(f"bound-{bound}", spec(steps=6, algorithm=algorithm))
            [row] = await world.rows(f"SELECT trained_max, trained_steps FROM task_staleness WHERE task = 'bound-{bound}'")
            assert row.trained_steps == 6
            assert row.trained_max <= bound
            assert await world.rows(f"SELECT count(*) FROM groups WHERE task = 'bound-{bound}' AND void_reason = 'stale'") == [(0,)]


async def test_groups_of_a_task_differ_in_their_own_seed_and_share_that_of_their_prompts(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a", spec(seed=5))
        assert {group.task_seed for group in world.stages.opened} == {5}
        assert len({group.seed for group in world.stages.opened}) == len(world.stages.opened)
        assert sorted(group.row for group in world.stages.opened) == list(range(len(world.stages.opened)))


async def test_messages_carry_the_weight_that_the_tenant_has_when_they_are_sent(bus: Bus, database_url: str) -> None:
    stages = GatedStages()
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", opened=4)
        await eventually(lambda: is_relayed(world, backlog=1))
        await world.execute("UPDATE tenants SET weight = 2.5")
        stages.gate.set()
        await world.event("a", "finished")
        assert {one.weight for one in (*stages.checks, *stages.opened[:4], *stages.batches[:1])} == {1.0}
        assert {one.weight for one in (*stages.opened[4:], *stages.batches[1:])} == {2.5}


async def test_duplicates_change_nothing(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=4))
        await eventually(lambda: len(world.stages.batches) >= 2)
        first = world.stages.opened[0]
        repeated = scored(first, 0, reward=99.0)
        await bus.publish(Outgoing(repeated.subject, repeated.message, "duplicate-score", repeated.headers))
        weights = updated(world.stages.batches[0])
        await bus.publish(Outgoing(weights.subject, weights.message, "duplicate-weights"))
        await world.event("a", "finished")
        assert await world.rows("SELECT max(reward) FROM trajectories") == [(1.0,)]
        assert await world.rows("SELECT count(*) FROM steps WHERE state = 'trained'") == [(4,)]
        assert await world.rows("SELECT count(*) FROM events WHERE event = 'step'") == [(4,)]


async def test_work_in_flight_follows_the_capacity_of_replicas(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: True)
    async with running_world(bus, database_url, stages, sequences=8) as world:
        algorithm = {"group_size": 2, "groups_per_step": 50}
        await world.submit("a", spec(algorithm=algorithm))
        await world.submit("b", spec(tenant="other", algorithm=algorithm))
        await eventually(lambda: len(stages.opened) >= 6)
        await asyncio.sleep(0.5)
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state = 'open'") == [(12,)]


async def test_new_scheduler_resumes_where_the_old_one_stopped(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.submit("a", spec(steps=8))
        await eventually(lambda: len(world.stages.batches) >= 3)
    async with running_world(bus, database_url, Stages()) as world:
        await world.event("a", "finished")
        assert await world.rows("SELECT count(*) FROM steps WHERE state = 'trained'") == [(8,)]
        assert await world.rows("SELECT admitted - voided FROM tasks") == [(16,)]
        assert await world.rows("SELECT version FROM steps WHERE state = 'trained' ORDER BY version") == [
            (version,) for version in range(8)
        ]
        assert await world.rows("SELECT count(*), count(DISTINCT number), max(number) FROM groups WHERE state = 'trained'") == [
            (16, 16, 15)
        ]
        assert await world.rows("SELECT DISTINCT count(*) FROM groups GROUP BY step") == [(2,)]


async def test_pace_is_kept_across_a_pause_a_void_group_and_another_scheduler(bus: Bus, database_url: str) -> None:
    """The number of admitted groups follows from the version and the void groups: no burst, and no lost refill."""
    stages = Stages(
        failure=lambda group, member: "sandbox died" if (group.task, group.group) == ("a", 1) else None,
        withheld=lambda group, member: group.task == "a" and group.group >= 6,
    )
    kept = [(2, 1, 2 * 2 + 2 * 2 + 1)]  # version · groups of a step + (bound + 1) · groups of a step + void
    pace = "SELECT version, voided, admitted FROM tasks"
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=9))
        await world.rows_become(pace, kept)
        await world.control("pause", "a", until="paused")
        await world.control("resume", "a", until="resumed")
        assert await world.rows(pace) == kept
    async with running_world(bus, database_url, Stages(failure=stages.failure, withheld=stages.withheld)) as world:
        await world.submit("b", spec(tenant="other"))  # the new scheduler considers both tasks
        await world.event("b", "finished", tenant="other")
        assert await world.rows(f"{pace} WHERE id = 'a'") == kept


async def test_two_schedulers_share_the_work(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world, running_world(bus, database_url, Stages()):
        for number in range(4):
            await world.submit(f"t{number}", spec(tenant=f"tenant{number % 2}", steps=5))
        for number in range(4):
            await world.event(f"t{number}", "finished", tenant=f"tenant{number % 2}")
        assert await world.rows("SELECT count(*), count(DISTINCT (task, version)) FROM steps WHERE state = 'trained'") == [(20, 20)]


async def test_task_that_starts_from_another_samples_and_trains_from_its_adapter(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        for task, start, source in (("latest", {"task": "a"}, 3), ("second", {"task": "a", "version": 2}, 2)):
            await world.run(task, spec(start=start))
            opened = [group for group in world.stages.opened if group.task == task and group.version == 0]
            assert {group.adapter.name for group in opened if group.adapter} == {f"{task}.v0"}
            assert {group.adapter.blob.name for group in opened if group.adapter} == {f"a.v{source}.adapter-0"}
            batches = [batch for batch in world.stages.batches if batch.task == task]
            assert {batch.start.blob.name for batch in batches if batch.start} == {f"a.v{source}.adapter-0"}
            later = [group for group in world.stages.opened if group.task == task and group.version > 0]
            assert all(group.adapter is not None and group.adapter.name == f"{task}.v{group.version}" for group in later)
