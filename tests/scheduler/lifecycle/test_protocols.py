"""Several protocols a task, differences to version 0, and the protocol that decides."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.evaluation import Difference, EvaluationReport, unpacked
from common.messages import GroupContext, from_json
from common.messages.prompts import FIRST_EVALUATION_GROUP as FIRST_GROUP
from common.spec import Protocol, parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.training.decisions.evaluation import (
    FIRST_ROW,
    RETRY_INCREMENT,
    Attempt,
    BestSoFar,
    gain_of,
    groups_to_plan,
    prompt_seed,
    result_of,
    standing_after,
)
from scheduler_svc.training.queries import evaluations, tasks
from scheduler_svc.training.queries.candidates import evaluation_candidates
from scheduler_svc.upkeep.deletion.storage import needed_blobs
from tests.scheduler.lifecycle.evaluating import clean, evaluates
from tests.support.scheduler.stages import Stages, World, running_world, scored, spec

GREEDY_AND_SAMPLED: dict[str, Any] = {
    "every": 2,
    "prompts": 3,
    "protocol": [{"name": "greedy"}, {"name": "sampled", "prompts": 2, "attempts": 4, "temperature": 0.7, "options": {"split": "test"}}],
}


def is_sampled(group: GroupContext) -> bool:
    return evaluates(group) and not group.greedy


def reward_by(greedy: Callable[[int, int], float], sampled: Callable[[int, int], float]) -> Callable[[GroupContext, int], float]:
    """Rewards of each protocol by version and prompt; 0 and 1 in training."""

    def reward(group: GroupContext, member: int) -> float:
        answer = sampled if is_sampled(group) else greedy
        return answer(group.version, group.row - FIRST_ROW) if evaluates(group) else float(member)

    return reward


async def reports(world: World, task: str, protocol: str) -> list[EvaluationReport]:
    found = [from_json(EvaluationReport, data) for data in await world.events(task, "evaluation")]
    return [report for report in found if report.protocol == protocol]


# ---------------------------------------------------------------------------------------------------------------- pure


def test_groups_of_all_protocols_and_versions_have_numbers_of_their_own() -> None:
    wanted = parse_spec(spec(evaluation=GREEDY_AND_SAMPLED)).evaluation
    planned = [groups for before in range(3) for groups in groups_to_plan(wanted, before)]
    assert [(groups.protocol.name, groups.protocol.attempts) for groups in planned[:2]] == [("greedy", 1), ("sampled", 4)]
    assert [number for groups in planned for number in groups.numbers] == list(range(FIRST_GROUP, FIRST_GROUP + 15))
    with_one = parse_spec(spec(evaluation={"every": 1, "prompts": 5})).evaluation
    assert [groups.protocol.name for groups in groups_to_plan(with_one, 0)] == ["main"]


def test_protocols_with_one_seed_ask_the_same_prompts() -> None:
    first, second, other = (Protocol(name=name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4)))
    assert [prompt_seed(first, prompt) for prompt in range(9)] == [prompt_seed(second, prompt) for prompt in range(9)]
    assert prompt_seed(first, 0) != prompt_seed(other, 0)


def test_gain_is_over_the_prompts_that_both_versions_have_scored_attempts_at() -> None:
    def result(*rewards: float | None):
        return result_of({prompt: [Attempt(reward, 1, False)] for prompt, reward in enumerate(rewards)}, protocol)

    protocol = Protocol(name="a", prompts=4)
    gain = gain_of(result(1.0, 1.0, 0.0, None), result(0.0, 1.0, None, 1.0), protocol)
    assert gain is not None
    assert (gain.mean, gain.prompts) == (0.5, 2)
    assert gain_of(result(None, 1.0), result(1.0, None), protocol) is None


@pytest.mark.parametrize(
    ("interval", "by_mean", "expected"),
    [
        ((0.01, 0.3), False, BestSoFar(7, 0)),
        ((-0.01, 0.3), False, BestSoFar(4, 3)),
        ((-0.01, 0.3), True, BestSoFar(7, 0)),
        (None, False, BestSoFar(4, 2)),
    ],
)
def test_version_gains_over_the_best_where_the_whole_interval_is_above_zero(
    interval: tuple[float, float] | None, by_mean: bool, expected: BestSoFar
) -> None:
    gain = Difference(0.15, 0.1, interval, prompts=9)
    assert standing_after(BestSoFar(4, 2), 7, gain, by_mean=by_mean) == expected
    assert standing_after(None, 7, None, by_mean=by_mean) == BestSoFar(7, 0)
    assert standing_after(BestSoFar(4, 2), 7, None, by_mean=by_mean) == BestSoFar(4, 2)


# ---------------------------------------------------------------------------------------------------------- scheduler


async def test_every_protocol_asks_its_own_prompts_and_reports_each_version(bus: Bus, database_url: str) -> None:
    stages = Stages(reward=reward_by(lambda version, _: version / 4, lambda version, prompt: float(version > 0 and prompt == 0)))
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=4, evaluation=GREEDY_AND_SAMPLED))
        await world.event("a", "finished")
        greedy, sampled = await reports(world, "a", "greedy"), await reports(world, "a", "sampled")
        assert [(one.version, one.reward, one.decides_by) for one in greedy] == [
            (version, version / 4, "lower_bound") for version in (0, 2, 4)
        ]
        assert [(one.version, one.reward, one.decides_by) for one in sampled] == [(0, 0.0, None), (2, 0.5, None), (4, 0.5, None)]
        assert [(one.prompts, one.attempts, set(one.pass_at)) for one in sampled] == [(2, 4, {"1", "2", "4"})] * 3
        assert unpacked(sampled[1].by_prompt) == {0: 1.0, 1: 0.0}
        assert sampled[0].gain is None
        assert [(one.gain.reward, one.gain.prompts) for one in greedy[1:] if one.gain] == [(0.5, 3), (1.0, 3)]
        opened = [group for group in stages.opened if is_sampled(group)]
        assert all((group.size, group.sampling.temperature, group.environment.options) == (4, 0.7, {"split": "test"}) for group in opened)
        assert sorted(group.row for group in opened) == sorted([FIRST_ROW, FIRST_ROW + 1] * 3)
        assert len({group.group for group in stages.opened}) == len(stages.opened)
        assert await world.rows(
            "SELECT protocol, count(*), max(reward), max(gain), bool_and(lower_bound <= reward AND reward <= upper_bound) "
            "FROM task_evaluations GROUP BY protocol ORDER BY protocol"
        ) == [("greedy", 3, 1.0, 1.0, True), ("sampled", 3, 0.5, 0.5, True)]
        assert await world.rows("SELECT sum(tokens) FROM ledger WHERE kind = 'evaluation'") == [(3 * (3 + 2 * 4) * 5,)]
        await clean(world)


async def test_groups_wait_for_room_by_the_size_of_the_next_protocol(database_url: str) -> None:
    """Admission takes groups of one size at a time, so that larger ones never count as small."""
    evaluation = {"every": 1, "attempts": 4, "temperature": 1.0, "prompts": 5, "protocol": [{"name": "a", "attempts": 1}, {"name": "b"}]}
    wanted = parse_spec(spec(evaluation=evaluation))
    async with await Database.connect(database_url) as database, database.transaction() as tx:
        await tasks.add_task(tx.connection, "a", wanted, submission="")
        await tx.connection.execute(text("UPDATE tasks SET state = 'running', family = 'toy'"))
        await evaluations.add(tx.connection, "a", 0, None, groups_to_plan(wanted.evaluation, 0))
        found: list[tuple[int, int]] = []
        for _ in range(10):
            [share] = (await evaluation_candidates(tx.connection, {"tiny"}, limit=4)).tasks
            found.append((share.allowance, share.group_size))
            assert await evaluations.open_first_group(tx.connection, "a", charged_tokens=1.0, deadline_at=datetime.now(UTC))
        assert found == [*((left, 1) for left in range(5, 0, -1)), *((left, 4) for left in range(5, 0, -1))]
        assert (await evaluation_candidates(tx.connection, {"tiny"}, limit=4)).tasks == []


async def test_options_of_every_protocol_are_checked_with_the_tasks(bus: Bus, database_url: str) -> None:
    stages = Stages(objection="evaluation.protocol 'sampled', options: toy has no option 'split'")
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(environment={"name": "toy", "options": {"size": 3}}, evaluation=GREEDY_AND_SAMPLED))
        await world.event("a", "rejected")
    [check] = stages.checks
    assert check.evaluation is None
    assert (check.environment.options, check.protocols) == ({"size": 3}, {"sampled": {"split": "test"}})


async def test_first_protocol_decides_what_is_kept_and_when_to_stop(bus: Bus, database_url: str) -> None:
    greedy = {0: 0.1, 2: 0.6, 4: 0.4, 6: 0.9}
    stages = Stages(reward=reward_by(lambda version, _: greedy[version], lambda version, _: 1.0 - greedy[version]))
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=100, evaluation=GREEDY_AND_SAMPLED, stop={"reward": 0.8}, keep={"checkpoints": 1, "best": 2}))
        assert (await world.event("a", "finished"))["reason"].startswith("stop.reward: version 6 was evaluated at 0.9")
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
        assert needed is not None
        kept = {name for name in needed.kept if ".checkpoint-" in name}
        assert {"a.v2.checkpoint-0", "a.v6.checkpoint-0"} <= kept
        assert "a.v4.checkpoint-0" not in kept
        await clean(world)


async def test_lower_bound_decides_unless_the_task_says_the_mean(bus: Bus, database_url: str) -> None:
    """Version 2 passes two of three prompts, and version 4 earns 0.6 of each, so that its mean is lower and certain."""
    stages = Stages(reward=reward_by(lambda version, prompt: {2: float(prompt < 2), 4: 0.6}.get(version, 0.0), lambda *_: 0.0))
    async with running_world(bus, database_url, stages) as world:
        kept: dict[str, set[str]] = {}
        for name, decide_by in (("a", "lower_bound"), ("b", "mean")):
            evaluation = {"every": 2, "prompts": 3, "decide_by": decide_by}
            await world.submit(name, spec(steps=6, evaluation=evaluation, keep={"checkpoints": 1, "best": 1}))
            await world.event(name, "finished")
            async with world.database.transaction() as tx:
                needed = await needed_blobs(tx.connection, name)
            kept[name] = {blob for blob in needed.kept if ".checkpoint-" in blob} if needed else set()
        assert kept == {"a": {"a.v4.checkpoint-0", "a.v6.checkpoint-0"}, "b": {"b.v2.checkpoint-0", "b.v6.checkpoint-0"}}
        for name, decide_by, ends_at in (("c", "lower_bound", 4), ("d", "mean", 2)):
            evaluation = {"every": 2, "prompts": 3, "decide_by": decide_by}
            await world.submit(name, spec(steps=500, evaluation=evaluation, stop={"reward": 0.59}))
            assert (await world.event(name, "finished"))["reason"].startswith(f"stop.reward: version {ends_at} was evaluated at")


async def test_gain_waits_for_the_result_of_version_0(bus: Bus, database_url: str) -> None:
    """The prompts that it answered first could be the easy ones."""
    stages = Stages(withheld=lambda group, member: evaluates(group) and group.version == 0 and group.row == FIRST_ROW)
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=1, evaluation={"every": 1, "prompts": 3}))
        await world.event("a", "evaluation")
        [late] = [group for group in stages.opened if stages.withheld(group, 0)]
        for member in range(late.size):
            await bus.publish(scored(late, member, reward=0.0, failure="late"))
        await world.event("a", "finished")
        [first, second] = await reports(world, "a", "main")
        assert [(first.version, first.gain), (second.version, second.prompts)] == [(1, None), (0, 2)]
        await clean(world)


async def test_task_without_a_gain_finishes_after_its_patience(bus: Bus, database_url: str) -> None:
    """Version 3 gains over 0 at every prompt, later ones at one of twenty."""
    rewards: Callable[[int, int], float] = lambda version, prompt: float(version >= 3) if prompt else float(version > 3)  # noqa: E731
    stages = Stages(reward=reward_by(rewards, rewards))
    async with running_world(bus, database_url, stages) as world:
        await world.submit("a", spec(steps=500, evaluation={"every": 1, "prompts": 20}, stop={"patience": 3}))
        data = await world.event("a", "finished")
        assert data["reason"] == "stop.patience: 3 evaluations in a row showed no gain over version 3"
        found = {one.version: (one.best_version, one.without_gain) for one in await reports(world, "a", "main")}
        assert {version: found[version] for version in range(7)} == {
            0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (3, 0), 4: (3, 1), 5: (3, 2), 6: (3, 3),
        }  # fmt: skip
        await clean(world)


async def test_late_group_of_a_later_protocol_is_retried_as_its_own(bus: Bus, database_url: str) -> None:
    stages = Stages(withheld=lambda group, member: is_sampled(group) and member > 0 and group.group < FIRST_GROUP + RETRY_INCREMENT)
    async with running_world(bus, database_url, stages) as world:
        world.disturb()
        await world.submit("a", spec(steps=1, limits={"episode_timeout_s": 1}, evaluation=GREEDY_AND_SAMPLED | {"every": 1}))
        await world.event("a", "finished")
        assert [(one.prompts, one.failed_share) for one in await reports(world, "a", "sampled")] == [(2, 0.0)] * 2
        await clean(world)
