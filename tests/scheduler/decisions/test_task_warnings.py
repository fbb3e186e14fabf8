"""Warnings: when each is active, its events when it begins and ends, and its entry in the task's status between."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from common.bus import Bus
from common.messages import ReplicaReport
from scheduler_svc.training.decisions.endings import Stall, StepMetrics, TaskWarning, no_progress, warnings_of_steps
from scheduler_svc.upkeep.stalls import warn_about_stalls
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.waiting import eventually_equals

HEALTHY = StepMetrics(truncated_share=0.2, zero_variance_share=0.1, entropy=2.0, sampler_mismatch=2e-4)
STALL = Stall(
    seconds=1200.0,
    is_accepted=True,
    pool="tiny",
    environment="toy",
    family="toy",
    open_groups=0,
    is_training=False,
    is_evaluating=False,
)


@pytest.mark.parametrize(
    ("sick", "nearly", "warning"),
    [
        ({"truncated_share": 1.0}, {"truncated_share": 0.99}, TaskWarning.TRUNCATED),
        ({"zero_variance_share": 1.0}, {"zero_variance_share": 0.99}, TaskWarning.EQUAL_REWARDS),
        ({"entropy": 0.09}, {"entropy": 0.11}, TaskWarning.ENTROPY_COLLAPSED),
        ({"sampler_mismatch": 2.1e-3}, {"sampler_mismatch": 1.9e-3}, TaskWarning.MISMATCH_GROWING),
    ],
)
def test_warning_is_active_when_all_of_the_last_steps_show_its_sign(
    sick: Mapping[str, float], nearly: Mapping[str, float], warning: TaskWarning
) -> None:
    first, latest = [HEALTHY] * 3, [replace(HEALTHY, **sick)] * 3
    assert list(warnings_of_steps(first, latest)) == [warning]
    assert warnings_of_steps(first, [replace(HEALTHY, **nearly)] * 3) == {}
    assert warnings_of_steps(first[:2], latest[:2]) == {}, "two steps are too few"
    assert warnings_of_steps(first, [*latest[:2], StepMetrics()]) == {}, "a metric that was not measured is no sign"
    assert warnings_of_steps(first, [HEALTHY] * 3) == {}


def test_one_skipped_update_is_a_warning_until_it_is_three_steps_old() -> None:
    skipping, clean = replace(HEALTHY, skipped_updates=2.0), replace(HEALTHY, skipped_updates=0.0)
    for latest in ([skipping], [clean, skipping], [skipping, clean, clean]):
        (sentence,) = warnings_of_steps(latest, latest).values()
        assert sentence.startswith(f"1 of the last {len(latest)} steps skipped an update")
    assert list(warnings_of_steps([clean] * 3, [skipping] * 2 + [clean])) == [TaskWarning.UPDATES_SKIPPED]
    assert warnings_of_steps([clean], [clean]) == {}
    assert warnings_of_steps([skipping] * 3, [clean] * 3) == {}


def test_mismatch_that_grows_and_stays_small_is_no_warning() -> None:
    tiny = replace(HEALTHY, sampler_mismatch=1e-7)
    assert warnings_of_steps([tiny] * 3, [replace(HEALTHY, sampler_mismatch=9e-4)] * 3) == {}


@pytest.mark.parametrize(
    ("changes", "awaited"),
    [
        ({"is_accepted": False, "family": None}, "an environment replica that serves 'toy'"),
        ({"is_accepted": False}, "the check of environment 'toy' (no env replicas alive)"),
        ({"is_training": True, "open_groups": 2}, "the trainer (1 trainer replica alive)"),
        ({"open_groups": 2}, "2 open groups: sampling (2 rollout replicas alive), or the environment (no env replicas alive)"),
        ({"is_evaluating": True}, "an evaluation: sampling (2 rollout replicas alive), or the environment (no env replicas alive)"),
        ({}, "room in pool 'tiny' (2 rollout replicas alive)"),
    ],
)
def test_stall_warning_names_what_the_task_waits_for(changes: Mapping[str, Any], awaited: str) -> None:
    sentence = no_progress(replace(STALL, **changes), {"trainer": 1, "rollout": 2})
    assert sentence == f"no attempt was scored and no step taken for 20 min; waits for {awaited}"


async def warnings(world: World, task: str) -> list[tuple[str, bool]]:
    """Name of each warning event of the task, and whether it reports that the warning is over."""
    return [(str(data["warning"]), bool(data["over"])) for data in await world.events(task, "warning")]


async def test_warning_is_an_event_when_it_begins_and_when_it_is_over(bus: Bus, database_url: str) -> None:
    stages = Stages(metrics=lambda version: {"truncated_share": 1.0 if version <= 4 else 0.5, "zero_variance_share": 1.0})
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", spec(steps=5))
        assert await warnings(world, "a") == [("equal_rewards", False), ("truncated", False), ("truncated", True)]
        await world.status_becomes("a", lambda status: (status.state, list(status.warnings)) == ("finished", ["equal_rewards"]))
        assert [list(row.warnings) for row in await world.rows("SELECT warnings FROM tasks")] == [["equal_rewards"]]


async def test_skipped_update_is_warned_about_until_it_is_three_steps_old(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(metrics=lambda version: {"skipped_updates": float(version == 1)})) as world:
        await world.submit("a", spec(steps=5))
        await world.event("a", "finished")
        assert await warnings(world, "a") == [("updates_skipped", False), ("updates_skipped", True)]
        assert [step["metrics"]["skipped_updates"] for step in await world.events("a", "step")] == [1, 0, 0, 0, 0]


async def test_stalled_task_is_warned_about_once_until_it_progresses(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", spec(steps=2), batches=1)
        trainer = ReplicaReport(replica="three", service="trainer", pool="tiny")
        assert not await warn_about_stalls(world.database, [trainer], running_s=3600.0), "it is too recent"
        assert not await warn_about_stalls(world.database, [trainer], running_s=0.0, limit_s=0.001), "the stack has just started"
        await world.execute("INSERT INTO pool_clocks (pool, parked_ms, parked_since) VALUES ('tiny', 0, now() - interval '1 hour')")
        await world.execute("INSERT INTO accelerators (id, spec) VALUES ('a', '{}')")
        await world.execute(
            "INSERT INTO executors (accelerator, id, pool, service, state, tier, device_bytes, ready_since, answered_at)"
            " VALUES ('a', 'trainer-tiny', 'tiny', 'trainer', 'parked', 'host', 8589934592, now(), now())"
        )
        assert await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001)
        (row,) = await world.rows("SELECT warnings FROM tasks")
        assert [*row.warnings] == ["parked"], "the other goes by its pool's clock"
        assert "pool 'tiny' waits for its accelerator, about 1 s. " in row.warnings["parked"]
        await world.execute("UPDATE executors SET ready_since = NULL")
        assert await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001)
        (row,) = await world.rows("SELECT warnings FROM tasks")
        assert [*row.warnings] == ["no_progress"], "nothing waits for its executors"
        await world.execute("UPDATE executors SET ready_since = now()")
        assert await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001)
        assert not await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001)
        await world.execute("UPDATE pool_clocks SET parked_since = NULL")
        assert await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001)
        assert not await warn_about_stalls(world.database, [trainer], running_s=3600.0, limit_s=0.001), "it is warned about already"
        (row,) = await world.rows("SELECT warnings FROM tasks")
        assert row.warnings["no_progress"].endswith("waits for the trainer (1 trainer replica alive)")

        assert await warn_about_stalls(world.database, [trainer], running_s=3600.0)
        assert [row.warnings for row in await world.rows("SELECT warnings FROM tasks")] == [{}]
        switch = [("no_progress", False), ("parked", True), ("no_progress", True), ("parked", False)]
        said = [("parked", False), *switch, *switch[:2], ("no_progress", True)]
        await eventually_equals(lambda: warnings(world, "a"), said)
