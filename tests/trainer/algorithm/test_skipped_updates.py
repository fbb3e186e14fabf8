"""Updates whose numbers are not finite: what is skipped, what stays, and when the task fails."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from common.errors import Reject
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.steps import begin, run, step
from trainer_svc.algorithm.step import StepResult
from trainer_svc.batch import Group
from trainer_svc.model.policy import Policy
from trainer_svc.state.resident import Resident

SPEC = make_spec("a", algorithm={"advantage": "dr_grpo"})
TWICE = make_spec("a", algorithm={"advantage": "dr_grpo", "passes": 2, "minibatches": 2})


def rewarded(groups: Sequence[Group], *rewards: float) -> list[Group]:
    """The groups with these rewards, in turn, for all their attempts."""
    turns = [rewards[member % len(rewards)] for member in range(len(groups[0].trajectories))]
    return [
        replace(group, trajectories=tuple(replace(t, reward=reward) for t, reward in zip(group.trajectories, turns, strict=True)))
        for group in groups
    ]


def spike(seed: int = 9) -> list[Group]:
    """A batch whose gradient is finite in each element, and whose squares are beyond float32."""
    return rewarded(make_groups(seed), 1e30, 0.0)


def trained(policy: Policy, spec: TaskSpec, batches: Sequence[list[Group]]) -> tuple[Resident, list[StepResult]]:
    resident, results = begin(policy, spec), list[StepResult]()
    for groups in batches:
        results.append(step(policy, resident, spec, groups))
        resident = results[-1].resident
    return resident, results


@pytest.mark.parametrize(
    ("rewards", "words"), [((1e30, 0.0), "gradient norm is inf"), ((1e300, 0.0), "loss is (inf|-inf|nan) and gradient norm is nan")]
)
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_run_with_a_spike_equals_the_run_without_that_batch_bit_for_bit(
    policy: Policy, at: int, rewards: tuple[float, float], words: str
) -> None:
    batches = [make_groups(seed) for seed in range(3)]
    expected, _ = trained(policy, SPEC, batches)
    found, results = trained(policy, SPEC, [*batches[:at], rewarded(make_groups(9), *rewards), *batches[at:]])
    for name in ("params", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(found.optimizer, name), getattr(expected.optimizer, name)), name
    assert (found.optimizer.steps, found.version, found.skips.updates, found.skips.versions) == (3, 4, 1, (at,))
    assert [result.metrics["skipped_updates"] for result in results] == [float(number == at) for number in range(4)]
    (numbers,) = results[at].skipped
    assert re.fullmatch(words, numbers)
    assert results[at].canary == (results[at - 1].canary if at else results[at].canary)
    assert {"loss", "grad_norm"}.isdisjoint(results[at].metrics)


def test_learning_rate_belongs_to_the_version_also_after_a_skip(policy: Policy) -> None:
    """So a schedule that is not constant differs from the run without the batch by the versions, and by nothing else."""
    spec = make_spec("a", algorithm={"advantage": "dr_grpo"}, optimizer={"schedule": "linear", "warmup_steps": 2})
    _, results = trained(policy, spec, [make_groups(0), spike(), make_groups(1)])
    _, clean = trained(policy, spec, [make_groups(0), make_groups(2), make_groups(1)])
    assert [one.metrics["learning_rate"] for one in results] == [one.metrics["learning_rate"] for one in clean]


def test_only_the_minibatch_that_is_not_finite_is_skipped_in_each_pass(policy: Policy) -> None:
    """Groups are dealt round-robin: the spike is in the second minibatch."""
    good = make_groups(5, groups=2)
    groups = [good[0], replace(spike()[0], group=1)]
    result = step(policy, begin(policy, TWICE), TWICE, groups)
    assert (result.metrics["updates"], result.metrics["skipped_updates"], result.resident.optimizer.steps) == (4, 2, 2)
    alone = make_spec("a", algorithm={"advantage": "dr_grpo", "passes": 2})
    expected = step(policy, begin(policy, alone), alone, good[:1]).resident.optimizer
    torch.testing.assert_close(result.resident.optimizer.params, expected.params, rtol=0, atol=1e-7)
    assert math.isfinite(result.metrics["loss"])


def test_one_bad_batch_of_many_updates_does_not_fail_the_task(policy: Policy) -> None:
    result = step(policy, begin(policy, TWICE), TWICE, spike())
    assert (result.metrics["skipped_updates"], result.resident.version, result.resident.optimizer.steps) == (4, 1, 0)


def test_fourth_in_a_row_fails_the_task_with_the_numbers_and_a_way_out(policy: Policy) -> None:
    resident, _ = trained(policy, SPEC, [make_groups(0), spike(1), spike(2), spike(3)])
    assert resident.skips.versions == (1, 2, 3)
    with pytest.raises(Reject) as caught:
        step(policy, resident, SPEC, spike(4))
    assert str(caught.value) == (
        "task a, step from version 4: gradient norm is inf; updates of the 3 steps before were skipped, too, and no more may be in a "
        "row; lower optimizer.learning_rate, and look for extreme rewards"
    )
    assert step(policy, resident, SPEC, make_groups(5)).metrics["skipped_updates"] == 0


def test_parameters_or_moments_that_would_not_be_finite_are_not_taken(policy: Policy) -> None:
    good = run(policy, SPEC, 1)
    for spoilt, words in (("exp_avg", "parameter norm is nan"), ("exp_avg_sq", "largest second moment is inf")):
        moments = getattr(good.optimizer, spoilt).clone()
        moments[5] = math.nan if spoilt == "exp_avg" else math.inf
        before = replace(good, optimizer=replace(good.optimizer, **{spoilt: moments}))
        result = step(policy, before, SPEC)
        assert result.skipped == (words,)
        assert result.resident.optimizer is before.optimizer


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_state_that_is_not_finite_itself_is_rejected_at_once(policy: Policy, number: float) -> None:
    """No batch can mend it, so there is nothing to skip."""
    good = run(policy, SPEC, 1)
    params = good.optimizer.params.clone()
    params[3] = number
    with pytest.raises(Reject, match="task a, step from version 1: canary is nan; lower "):
        step(policy, replace(good, optimizer=replace(good.optimizer, params=params)), SPEC)
