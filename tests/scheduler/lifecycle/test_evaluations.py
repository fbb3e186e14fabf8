"""Evaluations: held-out prompts beside training, their results, and the tasks that they finish."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.errors import Reject
from common.messages import DeadLetter, GroupContext, OpenGroup
from common.messages.prompts import FIRST_EVALUATION_GROUP as FIRST_GROUP
from common.spec import Protocol, parse_spec
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.evaluation import (
    FIRST_ROW,
    MAX_RETRIES,
    RETRY_INCREMENT,
    Attempt,
    groups_to_plan,
    is_due,
    pass_at_k,
    prompt_seed,
    result_of,
)
from scheduler_svc.training.queries import tasks
from scheduler_svc.upkeep.deletion.storage import needed_blobs
from tests.scheduler.lifecycle.evaluating import clean, evaluates
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.waiting import eventually

# ---------------------------------------------------------------------------------------------------------------- pure


def test_pass_at_k_is_the_share_of_draws_with_a_success() -> None:
    assert pass_at_k(4, 0, 2) == 0
    assert pass_at_k(4, 4, 1) == 1
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5  # 3 of the 6 pairs hold the one success
    assert pass_at_k(4, 2, 2) == pytest.approx(5 / 6)
    assert pass_at_k(4, 2, 3) == 1


def test_result_excludes_failures_and_reports_their_share() -> None:
    wanted = Protocol(name="main", prompts=3, attempts=3, temperature=1.0, success=0.5)

    def attempts(*rewards: float | None) -> list[Attempt]:
        return [Attempt(reward, sampled_tokens=10, truncated=reward == 0) for reward in rewards]

    result = result_of({0: attempts(1.0, 0.0, 0.5), 1: attempts(0.0, None, 0.0)}, wanted)  # the third prompt has no attempt
    assert result.reward is not None
    assert result.reward.mean == pytest.approx(1.5 / 5)
    assert result.by_prompt == {0: 0.5, 1: 0.0}
    assert result.failed_share == pytest.approx(4 / 9)
    assert result.pass_at == {1: pytest.approx((2 / 3 + 0) / 2), 2: pytest.approx((1 + 0) / 2), 3: 1.0}
    assert result.truncated_share == pytest.approx(3 / 5)
    assert result.response_length == 10


def test_evaluation_without_scores_has_no_reward() -> None:
    result = result_of({0: [Attempt(None, 0, False)]}, Protocol(name="main", prompts=1))
    assert (result.reward, result.pass_at, result.failed_share) == (None, {}, 1.0)


def test_prompts_are_the_same_each_time_and_none_is_trained_on() -> None:
    task = parse_spec(spec(steps=10, evaluation={"every": 4, "prompts": 5}))
    assert [version for version in range(11) if is_due(task, version)] == [0, 4, 8, 10]
    [protocol] = task.evaluation.protocols
    assert [groups.numbers for groups in groups_to_plan(task.evaluation, 2)] == [range(FIRST_GROUP + 10, FIRST_GROUP + 15)]
    assert len({prompt_seed(protocol, prompt) for prompt in range(1000)}) == 1000


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"evaluation": {"every": 1, "attempts": 4}}, "at temperature 0 they would all be the same"),
        ({"evaluation": {"every": 1, "temperature": 0.001}}, "use 0 for the likeliest tokens"),
        ({"stop": {"reward": 0.5}}, "stop.reward is about evaluations: set evaluation.every too"),
        ({"keep": {"best": 1}}, "keep.best is about evaluations: set evaluation.every too"),
    ],
)
def test_sections_that_make_no_sense_are_refused(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises(Reject, match=reason):
        parse_spec(spec(**sections))


# ---------------------------------------------------------------------------------------------------------- scheduler


def reward_of(answer: Callable[[int], float]) -> Callable[[GroupContext, int], float]:
    """Rewards: 0 and 1 in training, `answer` of the version in evaluations."""
    return lambda group, member: answer(group.version) if evaluates(group) else float(member)


async def test_trained_versions_answer_held_out_prompts_beside_training(bus: Bus, database_url: str) -> None:
    stages = Stages(reward=reward_of(lambda version: version / 8))
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=4, seed=7, evaluation={"every": 2, "prompts": 3, "options": {"split": "test"}}))
        await world.event("a", "finished")
        assert [(one["version"], one["reward"]) for one in await world.events("a", "evaluation")] == [(0, 0.0), (2, 0.25), (4, 0.5)]
        assert await world.rows("SELECT version, state, reward FROM task_evaluations ORDER BY version") == [
            (0, "finished", 0.0), (2, "finished", 0.25), (4, "finished", 0.5),
        ]  # fmt: skip
        opened = [group for group in stages.opened if evaluates(group)]
        assert {(group.version, group.adapter.name if group.adapter else None) for group in opened} == {(0, None), (2, "a.v2"), (4, "a.v4")}
        assert all(group.greedy and group.size == 1 and group.environment.options == {"split": "test"} for group in opened)
        prompts = {version: sorted((g.row, g.seed) for g in opened if g.version == version) for version in (0, 2, 4)}
        assert prompts[0] == prompts[2] == prompts[4]
        assert [row for row, _ in prompts[0]] == [FIRST_ROW, FIRST_ROW + 1, FIRST_ROW + 2]
        # Training is unchanged: every step, each group trained once, and no group of an evaluation.
        assert all(not group.greedy and group.environment.options == {} for group in stages.opened if not evaluates(group))
        assert await world.rows("SELECT count(*), max(number) FROM groups WHERE state = 'trained'") == [(8, 7)]
        assert all(group.group < FIRST_GROUP for batch in stages.batches for group in batch.groups)
        assert await world.rows("SELECT trained_max FROM task_staleness") == [(1,)]
        assert await world.rows("SELECT sum(tokens) FROM ledger WHERE kind = 'evaluation'") == [(3 * 3 * 5,)]
        assert await world.rows("SELECT evaluation_tokens FROM tenant_usage") == [(45,)]
        assert await world.rows("SELECT state FROM tasks WHERE virtual_time <> 4 * 2 * 2 * 5 + 45") == []
        await clean(world)


async def test_sampled_attempts_are_groups_of_their_own_size(bus: Bus, database_url: str) -> None:
    stages = Stages(reward=lambda group, member: float(member == 0))
    async with running_world(bus, database_url, stages, sequences=8) as world:  # fewer than one evaluation needs
        await world.submit("a", spec(steps=1, evaluation={"every": 1, "prompts": 5, "attempts": 4, "temperature": 0.7}))
        await world.event("a", "finished")
        assert [one["pass_at"] for one in await world.events("a", "evaluation")] == [{"1": 0.25, "2": 0.5, "4": 1.0}] * 2
        opened = [group for group in stages.opened if evaluates(group)]
        assert len(opened) == 10
        assert all(group.size == 4 and group.sampling.temperature == 0.7 and not group.greedy for group in opened)
        await clean(world)


async def test_target_reached_finishes_the_task_early(bus: Bus, database_url: str) -> None:
    stages = Stages(reward=reward_of(lambda version: version / 8))
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=500, evaluation={"every": 3, "prompts": 2}, stop={"reward": 0.375}))
        data = await world.event("a", "finished")
        assert data["reason"] == "stop.reward: version 3 was evaluated at 0.375 with a lower bound of 0.375, the target is 0.375"
        [row] = await world.rows("SELECT state, reason, version FROM tasks")
        assert (row.state, row.reason) == ("finished", data["reason"])
        assert 3 <= row.version < 500
        assert await world.rows("SELECT count(*) FROM trajectories WHERE state IN ('open', 'scored')") == [(0,)]
        await clean(world)


async def test_budgets_finish_the_task_after_the_step_that_uses_them_up(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        # A step is at least 2 groups of 2 members of 5 tokens, and 7 trained tokens; more may have been sampled ahead.
        await world.submit("tokens", spec(steps=500, stop={"tokens": 100}))
        assert (await world.event("tokens", "finished"))["reason"].endswith("tokens are spent, the budget is 100")
        await world.submit("seconds", spec(steps=100_000, stop={"seconds": 0.5}))
        assert (await world.event("seconds", "finished"))["reason"].startswith("stop.seconds: ")
        [tokens, seconds] = await world.rows("SELECT version FROM tasks ORDER BY id DESC")
        assert 2 <= tokens.version <= 4
        assert 1 <= seconds.version < 100_000
        await clean(world)


async def test_failed_attempts_count_neither_for_nor_against_the_version(bus: Bus, database_url: str) -> None:
    """Nor do they fail the task, however many there are."""
    stages = Stages(failure=lambda group, member: "sandbox died" if evaluates(group) and group.row > FIRST_ROW else None)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=2, evaluation={"every": 1, "prompts": 20}))
        await world.event("a", "finished")
        results = await world.events("a", "evaluation")
        assert [one["prompts"] for one in results] == [1, 1, 1]
        assert results[0]["failed_share"] == pytest.approx(0.95)
        assert results[0]["failure"] == "sandbox died"
        await clean(world)


async def test_groups_that_never_end_are_given_up_at_their_deadline(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: evaluates(group) and group.row == FIRST_ROW)
    in_evaluation = "SELECT row, state FROM groups WHERE protocol IS NOT NULL AND version = {} ORDER BY row"
    async with running_world(bus, database_url, stages) as world:
        world.scheduler._stability.stable_for_s = lambda: math.inf
        await world.submit("a", spec(steps=1, evaluation={"every": 1, "prompts": 2}))
        for version in (0, 1):
            await world.rows_become(in_evaluation.format(version), [(FIRST_ROW, "open"), (FIRST_ROW + 1, "ended")])
            await world.execute(f"UPDATE groups SET deadline_at = now() WHERE state = 'open' AND row = {FIRST_ROW} AND version = {version}")
        await world.event("a", "finished")
        results = await world.events("a", "evaluation")
        assert [one["failed_share"] for one in results] == [0.5, 0.5]
        assert results[0]["failure"] == "was not finished before limits.episode_timeout_s"
        await clean(world)


async def test_late_groups_are_retried_after_a_disturbance_and_keep_scored_members(bus: Bus, database_url: str) -> None:
    """An outage may last longer than a group's time limit."""

    def lost(group: GroupContext, member: int) -> bool:
        return evaluates(group) and group.row == FIRST_ROW and member > 0 and group.group < FIRST_GROUP + RETRY_INCREMENT

    stages = Stages(withheld=lost, reward=lambda group, member: 1.0)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()
        evaluation = {"every": 1, "prompts": 2, "attempts": 2, "temperature": 1.0}
        await world.submit("a", spec(steps=1, limits={"episode_timeout_s": 2}, evaluation=evaluation))
        await world.event("a", "finished")
        results = await world.events("a", "evaluation")
        assert [(one["prompts"], one["failed_share"], one["reward"]) for one in results] == [(2, 0.0, 1.0)] * 2
        numbers = [group.group for group in stages.opened if evaluates(group) and group.row == FIRST_ROW]
        assert {FIRST_GROUP, FIRST_GROUP + RETRY_INCREMENT} <= set(numbers)
        assert await world.rows("SELECT count(*) FROM groups WHERE protocol IS NOT NULL AND state <> 'ended'") == [(0,)]
        [(charged, booked)] = await world.rows(
            "SELECT (SELECT sum(virtual_time) FROM tasks), (SELECT sum(tokens) FROM ledger WHERE kind <> 'trained')"
        )
        assert charged == booked
        await clean(world)


async def test_group_that_ended_since_it_was_found_late_is_left_alone(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: evaluates(group) and group.row > FIRST_ROW)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=1, evaluation={"every": 1, "prompts": 2}))
        await eventually(lambda: sum(map(evaluates, stages.opened)) == 4)
        await world.rows_become(f"SELECT state FROM groups WHERE number = {FIRST_GROUP}", [("ended",)])
        late = [("a", FIRST_GROUP), ("a", FIRST_GROUP + 1)]
        async with world.database.transaction() as tx:
            by_id = {task.id: task for task in await tasks.lock_tasks(tx.connection, ["a"])}
            await evaluations.end_overdue(tx, by_id, late, stable_for_s=lambda _: 0.0)
        assert await world.rows("SELECT number FROM groups WHERE protocol IS NOT NULL AND version = 0 ORDER BY number") == [
            (FIRST_GROUP,),
            (FIRST_GROUP + 1 + RETRY_INCREMENT,),
        ]
        await world.control("cancel", "a")
        await world.event("a", "cancelled")
        await clean(world)


async def test_retries_of_groups_that_never_end_are_bounded(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: evaluates(group) and group.row == FIRST_ROW)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()
        await world.submit("a", spec(steps=1, limits={"episode_timeout_s": 0.8}, evaluation={"every": 1, "prompts": 1}))
        await world.event("a", "finished")
        assert [one["failed_share"] for one in await world.events("a", "evaluation")] == [1.0, 1.0]
        numbers = [group.group for group in stages.opened if evaluates(group) and group.version == 0]
        assert numbers == [FIRST_GROUP + times * RETRY_INCREMENT for times in range(MAX_RETRIES + 1)]
        await clean(world)


async def test_options_of_an_evaluation_are_checked_with_the_tasks(bus: Bus, database_url: str) -> None:
    stages = Stages(objection="evaluation.options: toy has no option 'spilt'")
    async with running_world(bus, database_url, stages) as world:
        environment = {"name": "toy", "options": {"size": 3, "split": "train"}}
        await world.submit("a", spec(environment=environment, evaluation={"every": 1, "options": {"split": "test"}}))
        assert (await world.event("a", "rejected"))["reasons"] == ["environment: evaluation.options: toy has no option 'spilt'"]
        await world.submit("b", spec(environment=environment))
        await world.event("b", "rejected")
    with_options, without = stages.checks
    assert (with_options.environment.options["split"], without.evaluation) == ("train", None)
    assert with_options.evaluation is not None
    assert with_options.evaluation.options == {"size": 3, "split": "test"}


async def test_dead_letter_of_an_evaluation_gives_up_its_group_only(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: evaluates(group) and group.row == FIRST_ROW)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=1, evaluation={"every": 1, "prompts": 2}))
        answered = 0
        while answered < 2:  # version 0, then version 1
            await eventually(lambda: sum(evaluates(g) and g.row == FIRST_ROW for g in stages.opened) > answered)  # noqa: B023
            stuck = [group for group in stages.opened if evaluates(group) and group.row == FIRST_ROW][answered]
            answered += 1
            body = OpenGroup(group=stuck).encode()
            lost = streams.open_group("toy", "a", stuck.group)
            letter = DeadLetter(stage="open", subject=lost, reason="no such file", attempts=5, headers={}, body=body, sequence=1)
            await bus.publish(Outgoing(streams.failed("open", "a"), letter, f"letter-{answered}"))
        await world.event("a", "finished")
        assert [one["failure"] for one in await world.events("a", "evaluation")] == ["no such file", "no such file"]
        assert await world.rows("SELECT count(*) FROM groups WHERE state = 'void'") == [(0,)]
        await clean(world)


async def test_cancelled_task_leaves_no_running_evaluation(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: evaluates(group) and member == 1)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=3, evaluation={"every": 1, "prompts": 2, "attempts": 2, "temperature": 1}))
        await eventually(lambda: any(evaluates(group) and group.version == 3 for group in stages.opened))
        assert await world.rows("SELECT state, version FROM tasks") == [("running", 3)]  # it waits for its evaluations
        await world.control("cancel", "a")
        await world.event("a", "cancelled")
        assert await world.rows("SELECT DISTINCT state FROM evaluations") == [("void",)]
        assert await world.rows("SELECT DISTINCT state FROM groups WHERE protocol IS NOT NULL") == [("ended",)]
        await clean(world)


async def test_best_versions_are_kept_by_their_evaluations(bus: Bus, database_url: str, tmp_path: Path) -> None:
    rewards = {0: 0.0, 2: 0.9, 4: 0.5, 6: 0.7, 8: 0.1}
    stages = Stages(reward=reward_of(lambda version: rewards[version]))
    async with running_world(bus, database_url, stages) as world:
        keep = {"checkpoints": 1, "best": 2}
        await world.submit("a", spec(steps=8, evaluation={"every": 2, "prompts": 1}, keep=keep))
        await world.event("a", "finished")
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
        assert needed is not None
        kept = sorted(name for name in needed.kept if ".checkpoint-" in name)
        assert kept == ["a.v2.checkpoint-0", "a.v6.checkpoint-0", "a.v8.checkpoint-0"]
