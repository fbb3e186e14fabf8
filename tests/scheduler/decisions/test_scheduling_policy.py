"""Scheduling policies: the asynchronous one, and the two baselines of its benchmarks."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import pytest

from common.bus import Bus
from scheduler_svc.base.scheduling_policy import SchedulingPolicy, TaskSnapshot, allowances, steps_to_send_together
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.waiting import eventually

START = datetime(2026, 1, 1, tzinfo=UTC)


def snapshot(task: str, **changes: object) -> TaskSnapshot:
    made = TaskSnapshot(task, START, allowance=4, lockstep_allowance=2, has_step_ready=False, is_training=False)
    return replace(made, **changes)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- decisions


def test_asynchronous_lets_every_task_keep_its_own_pace() -> None:
    tasks = [snapshot("a"), snapshot("b", is_training=True), snapshot("c", allowance=0)]
    assert allowances(SchedulingPolicy.ASYNCHRONOUS, tasks) == {"a": 4, "b": 4, "c": 0}


def test_sequential_serves_the_task_accepted_first_even_while_it_waits() -> None:
    tasks = [snapshot("a", accepted_at=START + timedelta(seconds=1)), snapshot("b", allowance=0, is_training=True)]
    assert allowances(SchedulingPolicy.SEQUENTIAL, tasks) == {"b": 0}
    assert allowances(SchedulingPolicy.SEQUENTIAL, []) == {}


def test_synchronous_samples_one_step_each_and_nothing_while_a_step_is_trained() -> None:
    tasks = [snapshot("a"), snapshot("b", lockstep_allowance=0, has_step_ready=True)]
    assert allowances(SchedulingPolicy.SYNCHRONOUS, tasks) == {"a": 2, "b": 0}
    assert allowances(SchedulingPolicy.SYNCHRONOUS, [*tasks, snapshot("c", is_training=True)]) == {}


def test_steps_are_sent_together_once_all_are_ready() -> None:
    ready = [snapshot("a", has_step_ready=True), snapshot("b", has_step_ready=True)]
    assert steps_to_send_together(ready) == ["a", "b"]
    assert steps_to_send_together([*ready, snapshot("c")]) == []
    assert steps_to_send_together([*ready, snapshot("c", has_step_ready=True, is_training=True)]) == []


# ------------------------------------------------------------------------------------------------------------- at work


async def begin_together(world: World, *names: str) -> None:
    """Submit tasks to a world without capacity, and add capacity once all are accepted."""
    for name in names:
        await world.run(name, until="accepted")
    await world.make_room(sequences=4)


async def test_sequential_tasks_never_overlap(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(), sequences=0, policy=SchedulingPolicy.SEQUENTIAL) as world:
        await begin_together(world, "a", "b", "c")
        for task in ("a", "b", "c"):
            await world.event(task, "finished")
        assert [task for task, _ in groupby(world.stages.opened, key=lambda group: group.task)] == ["a", "b", "c"]


async def test_synchronous_steps_are_batched_together_in_every_round(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(), sequences=0, policy=SchedulingPolicy.SYNCHRONOUS) as world:
        await begin_together(world, "a", "b", "c")
        for task in ("a", "b", "c"):
            await world.event(task, "finished")
        rounds = await world.rows("SELECT version, count(*) FROM steps GROUP BY version, batched_at ORDER BY version")
        assert rounds == [(0, 3), (1, 3), (2, 3)]
        assert [group.version for group in world.stages.opened] == [version for version in (0, 1, 2) for _ in range(6)]


async def test_lockstep_continues_without_a_task_that_ends(bus: Bus, database_url: str) -> None:
    stuck = Stages(withheld=lambda group, member: group.task == "stuck")
    async with running_world(bus, database_url, stuck, policy=SchedulingPolicy.SYNCHRONOUS) as world:
        for task in ("a", "stuck"):
            await world.run(task, spec(name=task), until="accepted")
        await world.control("cancel", "stuck")
        assert (await world.event("a", "finished"))["version"] == 3


@pytest.mark.parametrize("ending", ["failed", "cancelled"])
async def test_next_task_has_its_turn_once_the_one_before_has_failed_or_was_cancelled(bus: Bus, database_url: str, ending: str) -> None:
    stages = Stages(
        failure=lambda group, member: "sandbox died" if group.task == "a" else None,
        withheld=lambda group, member: group.task == "a" and ending == "cancelled",
    )
    async with running_world(bus, database_url, stages, policy=SchedulingPolicy.SEQUENTIAL) as world:
        await world.submit("a", spec())
        await eventually(lambda: len(stages.opened) > 0)
        await world.submit("b", spec(tenant="other"))
        if ending == "cancelled":
            await world.control("cancel", "a")
        await world.event("a", ending)
        await world.event("b", "finished", tenant="other")
