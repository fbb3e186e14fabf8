"""Void groups and failed tasks against real NATS and PostgreSQL."""

import asyncio

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import UNSUPPORTED, DeadLetter
from scheduler_svc.training.decisions.endings import MIN_FAILURES_TO_FAIL
from tests.support.scheduler.stages import Stages, running_world, scored, spec


async def test_failed_member_voids_its_group_which_is_refilled(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group == 1 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.run("a")
        assert await world.rows("SELECT number, void_reason, detail FROM groups WHERE state = 'void'") == [(1, "failed", "sandbox died")]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]
        assert all(batch.group != 1 for train in world.stages.batches for batch in train.groups)


async def test_step_reports_the_share_of_void_groups(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group == 1 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", spec(steps=2, algorithm={"group_size": 2, "groups_per_step": 2, "max_staleness": 0}))
        events = await world.rows("SELECT data -> 'metrics' AS metrics FROM events WHERE event = 'step' ORDER BY id")
        assert [row.metrics.get("void_share") for row in events] == [1 / 3, 0.0]
        assert [row.metrics.get("void.failed") for row in events] == [1.0, None]
        assert [row.metrics for row in events] == [row.metrics for row in await world.rows("SELECT metrics FROM steps ORDER BY version")]


async def test_overdue_group_is_voided_and_refunded(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group == 0 and member == 1)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()  # or groups that a slow machine delays would fail the task
        await world.run("a", spec(limits={"episode_timeout_s": 2}))
        void = await world.rows("SELECT number, void_reason FROM groups WHERE state = 'void'")
        assert (0, "deadline") in void  # and others that a slow machine delayed
        assert {reason for _, reason in void} == {"deadline"}
        await bus.publish(scored(stages.opened[0], 1, reward=1.0))
        await asyncio.sleep(0)
        assert await world.rows("SELECT voided, admitted FROM tasks") == [(len(void), 6 + len(void))]


def equal_below(number: int) -> Stages:
    """Stages in which the members of the first `number` groups earn equal rewards."""
    return Stages(reward=lambda group, member: 0.25 if group.group < number else float(member))


REFILLING = {"group_size": 2, "groups_per_step": 2, "max_staleness": 1, "max_refills": 100}


async def test_group_of_equal_rewards_is_void_and_refilled_where_the_task_asks(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(3)) as world:
        await world.run("a", spec(algorithm=REFILLING))
        void = "SELECT number FROM groups WHERE state = 'void' AND void_reason = 'zero_variance' ORDER BY number"
        assert await world.rows(void) == [(0,), (1,), (2,)]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]
        assert await world.rows("SELECT min(reward), max(reward) FROM steps") == [(0.5, 0.5)]
        assert await world.rows("SELECT voided, admitted, failures_in_a_row FROM tasks") == [(3, 9, 0)]
        # void groups are billed too
        assert await world.rows("SELECT sum(tokens) FROM ledger WHERE kind = 'sampled'") == [(9 * 2 * 2,)]


@pytest.mark.parametrize(("apart", "void"), [(1.0, []), (0.0, [(0,), (1,), (2,)])])
async def test_group_is_equal_by_its_shaped_rewards(bus: Bus, database_url: str, apart: float, void: list[tuple[int]]) -> None:
    """Attempts that earn the same, ranked by a component that they differ in or not."""
    stages = equal_below(3)
    stages.components = lambda group, member: {"short": apart * member, "other": float(member)}
    async with running_world(bus, database_url, stages) as world:
        await world.run("a", spec(algorithm=REFILLING, environment={"name": "toy", "rank_weights": {"short": 0.2}}))
        assert await world.rows("SELECT number FROM groups WHERE void_reason = 'zero_variance' ORDER BY number") == void
        assert await world.rows("SELECT DISTINCT longest_turn_tokens, components ->> 'other' FROM trajectories") == [(2, None)]


async def test_group_of_equal_rewards_is_trained_by_default(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(3)) as world:
        await world.run("a")
        assert await world.rows("SELECT voided, admitted FROM tasks") == [(0, 6)]


async def test_refills_end_at_the_limit_so_that_a_solved_task_ends_too(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, equal_below(10**6)) as world:
        await world.run("a", spec(algorithm=REFILLING | {"max_refills": 1}))
        by_version = await world.rows(
            "SELECT version, count(*) FROM groups WHERE void_reason = 'zero_variance' GROUP BY version ORDER BY 1"
        )
        assert by_version[0] == (0, 1)
        assert {count for _, count in by_version} == {1}
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'trained'") == [(6,)]


async def test_environment_that_always_fails_fails_its_task_alone(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "no such file" if group.task == "bad" else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("bad", spec(steps=50))
        await world.submit("good", spec(tenant="other"))
        assert "the last: no such file" in str((await world.event("bad", "failed"))["reason"])
        await world.event("good", "finished", tenant="other")
        [row] = await world.rows("SELECT count(*) FROM groups WHERE task = 'bad' AND void_reason = 'failed'")
        assert MIN_FAILURES_TO_FAIL <= row[0] <= MIN_FAILURES_TO_FAIL + 4


async def test_share_of_failed_groups_is_reported_and_ends_the_task_above_its_limit(bus: Bus, database_url: str) -> None:
    stages = Stages(failure=lambda group, member: "sandbox died" if group.group % 2 else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("strict", spec(steps=50, limits={"max_failed_share": 0.4}))
        await world.submit("patient", spec(steps=8, tenant="other"))
        reason = (await world.event("strict", "failed"))["reason"]
        assert "groups failed (limits.max_failed_share is 0.4); the last: sandbox died" in reason
        assert 0.3 < (await world.event("patient", "step", tenant="other"))["failed_share"] < 0.7
        await world.event("patient", "finished", tenant="other")
        [(failed, share)] = await world.rows("SELECT failed_groups, failed_share FROM task_status WHERE task = 'patient'")
        [(void, all_groups)] = await world.rows(
            "SELECT count(*) FILTER (WHERE state = 'void'), count(*) FROM groups WHERE task = 'patient'"
        )
        assert (failed, share) == (void, void / all_groups)
        await world.status_becomes("patient", lambda status: status.failed_share == share)


async def test_task_whose_attempts_the_sandbox_cannot_grade_fails_with_the_remedy(bus: Bus, database_url: str) -> None:
    """Also where it allows any share of failures, and trains some groups."""
    remedy = f"{UNSUPPORTED} (row 3): the sandbox 'monty' cannot run this program; run it with another"
    stages = Stages(failure=lambda group, member: remedy if group.group % 3 and member == 0 else None)
    async with running_world(bus, database_url, stages) as world:
        reason = await world.run("unsupported", spec(steps=50), until="failed")
        assert "groups had attempts that cannot be graded here; the last: unsupported by the sandbox (row 3)" in str(reason)
        assert await world.rows("SELECT version > 0 FROM tasks WHERE id = 'unsupported'") == [(True,)]


async def test_dead_letter_of_a_step_fails_the_task_with_its_reason(bus: Bus, database_url: str) -> None:
    stages = Stages(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", batches=1)
        body = stages.batches[0].encode()
        letter = DeadLetter(
            stage="train", subject="trajectories.batch.tiny.a", reason="loss is NaN", attempts=1, headers={}, body=body, sequence=1
        )
        await bus.publish(Outgoing(streams.failed("train", "a"), letter, "letter"))
        assert (await world.event("a", "failed"))["reason"] == "loss is NaN"
        assert await world.rows("SELECT state FROM steps") == [("void",)]


async def test_dead_letters_of_garbage_end_no_task(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: group.group == 2)
    async with running_world(bus, database_url, stages) as world:
        await world.begin("a", batches=1)
        other = stages.batches[0].model_copy(update={"version": 5}).encode()
        for number, (stage, body) in enumerate([("train", b"garbage"), ("train", other), ("check", b"garbage")]):
            lost = streams.batch("tiny", "a") if stage == "train" else streams.check("toy", "a")
            letter = DeadLetter(stage=stage, subject=lost, reason="not a message", attempts=1, headers={}, body=body, sequence=1)
            await bus.publish(Outgoing(streams.failed(stage, "a"), letter, f"letter-{number}"))
        await world.rows_become("SELECT count(*) FROM dead_letters", [(3,)])
        assert await world.rows("SELECT state FROM tasks") == [("running",)]
