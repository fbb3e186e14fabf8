"""Batched steps equal steps run alone, and a task that fails does so alone.

Alone is the reference: equal work gives equal bits. Batched, matrix products have other shapes and round differently, so
differences are bounded by TOLERANCE, relative to the vector's norm.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from common.errors import Fatal, Reject, Retry, Unavailable
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec, make_trajectory
from tests.support.trainer.models import VOCABULARY
from tests.trainer.steps import BUDGET, DIFFERENT, assert_identical, begin
from trainer_svc.algorithm.batched_steps import run_steps
from trainer_svc.algorithm.step import StepResult, step, train_step, weighted_samples
from trainer_svc.batch import Group, Trajectory
from trainer_svc.device.errors import scratch_folder
from trainer_svc.learner import Learner, Trained
from trainer_svc.model.batched_lora import ProductBuilder, by_grouped_mm, by_loop
from trainer_svc.model.packing import PAD, Packed, Segment, pack, rows_of, unpadded_tokens
from trainer_svc.model.policy import Adapted, Policy, TokenScores
from trainer_svc.state.resident import Resident

TOLERANCE = 1e-5
"""Relative tolerance of the first moment, after one step the clipped gradient times (1 − β₁): maximum seen 2.5e-6."""
PARAMETERS = 1e-3
"""Relative tolerance of the parameters' change: AdamW divides by |gradient|, so rounding of small ones counts. Maximum seen 4e-5."""

Outcome = StepResult | Exception


def groups_of(name: str, version: int = 0) -> list[Group]:
    """Groups of a task: their number, size, length and staleness differ from other tasks'."""
    seed = ord(name)
    return make_groups(100 * version + seed, groups=2 + seed % 3, size=3 + seed % 4, turns=1 + seed % 2, staleness=seed % 2)


def together(
    policy: Policy, residents: dict[str, Resident], specs: dict[str, TaskSpec], groups: dict[str, list[Group]]
) -> dict[str, Outcome]:
    steps = [step(policy, residents[name], groups[name], specs[name], budget_tokens=BUDGET) for name in residents]
    names = list(residents)
    return {names[index]: result for index, result in run_steps(policy, steps, budget_tokens=BUDGET)}


def alone(policy: Policy, resident: Resident, spec: TaskSpec, groups: list[Group]) -> StepResult:
    return train_step(policy, resident, groups, spec, budget_tokens=BUDGET)


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return (torch.linalg.vector_norm(found - expected) / torch.linalg.vector_norm(expected)).item()


def assert_equal_but_for_rounding(found: Outcome, expected: StepResult, before: Resident) -> None:
    assert isinstance(found, StepResult)
    one, other = found.resident, expected.resident
    assert (one.task, one.version, one.layout, one.optimizer.steps) == (other.task, other.version, other.layout, other.optimizer.steps)
    assert difference(one.optimizer.exp_avg, other.optimizer.exp_avg) < TOLERANCE
    assert difference(one.optimizer.exp_avg_sq, other.optimizer.exp_avg_sq) < TOLERANCE
    assert difference(one.optimizer.params - before.optimizer.params, other.optimizer.params - before.optimizer.params) < PARAMETERS
    assert found.trained_tokens == expected.trained_tokens
    for name in ("loss", "grad_norm", "entropy", "kl_sampler", "clip_fraction", "tokens", "reward_mean", "updates"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4, abs=1e-5), name
    canaries = [np.frombuffer(result.canary.logprobs, "<f4") for result in (found, expected)]
    np.testing.assert_allclose(*canaries, atol=1e-3)


@pytest.fixture(params=[by_loop, by_grouped_mm])
def either_way(request: pytest.FixtureRequest, policy: Policy) -> ProductBuilder:
    """The session's policy with each implementation of batched LoRA."""
    before, policy.batched_products = policy.batched_products, request.param
    request.addfinalizer(lambda: setattr(policy, "batched_products", before))
    return request.param


@pytest.mark.usefixtures("either_way")
def test_steps_together_equal_steps_alone(policy: Policy) -> None:
    """Ranks 3 to 16, other targets, temperatures, losses, passes, minibatches, KL, entropy, clip, decay: all at once."""
    residents = {name: alone(policy, begin(policy, spec), spec, groups_of(name)).resident for name, spec in DIFFERENT.items()}
    groups = {name: groups_of(name, 1) for name in DIFFERENT}
    found = together(policy, residents, DIFFERENT, groups)
    assert found.keys() == DIFFERENT.keys()
    for name, spec in DIFFERENT.items():
        assert_equal_but_for_rounding(found[name], alone(policy, residents[name], spec, groups[name]), residents[name])
    assert {result.metrics["together"] for result in found.values() if isinstance(result, StepResult)} == {6.0}


def test_a_single_step_is_the_step_alone_bit_for_bit(policy: Policy) -> None:
    for name, spec in DIFFERENT.items():
        resident = begin(policy, spec)
        (result,) = together(policy, {name: resident}, DIFFERENT, {name: groups_of(name)}).values()
        assert isinstance(result, StepResult)
        assert_identical(result.resident, alone(policy, resident, spec, groups_of(name)).resident)
        assert result.metrics["together"] == 1


def test_what_went_in_is_as_it_was(policy: Policy) -> None:
    residents = {name: begin(policy, DIFFERENT[name]) for name in "ab"}
    copies = {name: resident.optimizer.params.clone() for name, resident in residents.items()}
    together(policy, residents, DIFFERENT, {name: groups_of(name) for name in "ab"})
    for name in "ab":
        assert torch.equal(residents[name].optimizer.params, copies[name])
        assert residents[name].optimizer.params.grad is None


def sick(policy: Policy, name: str, number: float) -> Resident:
    resident = begin(policy, DIFFERENT[name])
    params = resident.optimizer.params.clone()
    params[3] = number
    return replace(resident, optimizer=replace(resident.optimizer, params=params))


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_task_whose_numbers_are_not_finite_fails_alone(policy: Policy, number: float) -> None:
    residents = {name: begin(policy, DIFFERENT[name]) for name in "abc"} | {"b": sick(policy, "b", number)}
    groups = {name: groups_of(name) for name in "abc"}
    found = together(policy, residents, DIFFERENT, groups)
    assert isinstance(found["b"], Reject)
    assert "task b, step from version 0: " in str(found["b"])
    for name in "ac":
        assert_equal_but_for_rounding(found[name], alone(policy, residents[name], DIFFERENT[name], groups[name]), residents[name])


@pytest.mark.usefixtures("either_way")
def test_skip_of_one_task_changes_no_bit_of_another(policy: Policy) -> None:
    """The same tokens once with rewards that overflow: only that task's state and numbers differ."""
    specs = {name: DIFFERENT[name] for name in "ab"} | {"c": make_spec("c", seed=3, algorithm={"advantage": "dr_grpo"})}
    residents = {name: begin(policy, spec) for name, spec in specs.items()}
    groups = {name: groups_of(name) for name in specs}
    expected = together(policy, residents, specs, groups)
    found = together(policy, residents, specs, groups | {"c": changed(groups["c"], reward=1e30)})
    assert all(isinstance(result, StepResult) for result in [*expected.values(), *found.values()])
    assert {name: result.metrics["skipped_updates"] for name, result in found.items() if isinstance(result, StepResult)} == {
        "a": 0,
        "b": 0,
        "c": 1,
    }
    for name in "ab":
        assert_identical(found[name].resident, expected[name].resident)  # pyright: ignore[reportAttributeAccessIssue]
    assert found["c"].resident.optimizer is residents["c"].optimizer  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("names", ["ac", "ca"])
@pytest.mark.parametrize("prompts", [{"a": 30, "c": 6}, {"a": 6, "c": 30}])
def test_rows_are_not_padded_with_another_tasks_numbers(policy: Policy, names: str, prompts: dict[str, int], number: float) -> None:
    """The longest prompt is attended to first, of whichever task, and every row is padded."""
    residents = {name: begin(policy, DIFFERENT[name]) for name in names} | {"c": sick(policy, "c", number)}
    groups = {name: prompted(name, prompts[name]) for name in names}
    assert any((packed.branch_B_T[segment.rows] == PAD).any() for packed, segment in segments(policy, groups, owner=names.index("a")))
    found = together(policy, residents, DIFFERENT, groups)
    assert isinstance(found["c"], Reject)
    assert_equal_but_for_rounding(found["a"], alone(policy, residents["a"], DIFFERENT["a"], groups["a"]), residents["a"])


def prompted(name: str, tokens: int) -> list[Group]:
    """Groups with prompts of that many tokens and random replies."""
    rng = np.random.default_rng(ord(name))
    prompts = rng.integers(0, VOCABULARY, (2, tokens)).tolist()
    return [
        Group(number, 0, tuple(make_trajectory(member, prompt, rng, reward=float(member == 0)) for member in range(4)))
        for number, prompt in enumerate(prompts)
    ]


def segments(policy: Policy, groups: dict[str, list[Group]], *, owner: int) -> Iterator[tuple[Packed, Segment]]:
    """Segments of that owner when all are packed together."""
    owners = []
    for own in groups.values():
        (samples,) = weighted_samples(own, [np.ones(len(group.trajectories)) for group in own], DIFFERENT["a"])
        owners.append(rows_of(samples, budget_tokens=BUDGET, width=policy.width))
    for packed in pack(owners, budget_tokens=BUDGET):
        yield from ((packed, segment) for segment in packed.segments if segment.owner == owner and len(packed.segments) > 1)


def test_garbage_of_one_task_fails_that_task_alone(policy: Policy) -> None:
    """Log-probabilities of another policy, rewards that its rule refuses, rewards that are NaN, nothing sampled."""
    specs = DIFFERENT | {"b": make_spec("b", correction={"max_sampler_mismatch": 1e-4})}
    residents = {name: begin(policy, spec) for name, spec in specs.items()}
    groups = {name: groups_of(name) for name in specs}
    groups["b"] = make_groups(7)  # made-up logprobs that claim to be fresh
    groups["c"] = changed(groups["c"], reward=math.nan)
    groups["e"] = changed(groups["e"], reward=-1.0) + groups["e"]
    groups["f"] = changed(groups["f"], reward=None)
    found = together(policy, residents, specs, groups)
    assert {name for name, result in found.items() if isinstance(result, Exception)} == {"b", "c", "e", "f"}
    assert "mismatch" in str(found["b"])
    assert "maxrl" in str(found["e"])
    assert "no sampled token" in str(found["f"])
    for name in "ad":
        assert_equal_but_for_rounding(found[name], alone(policy, residents[name], specs[name], groups[name]), residents[name])


def changed(groups: list[Group], *, reward: float | None) -> list[Group]:
    """The same attempts with that reward for the first member of each group; without one, with nothing sampled."""

    def altered(one: Trajectory) -> Trajectory:
        if reward is None:
            return replace(one, sampled_T=np.zeros_like(one.sampled_T))
        return replace(one, reward=reward) if one.member == 0 else one

    return [replace(group, trajectories=tuple(altered(one) for one in group.trajectories)) for group in groups]


def test_micro_batches_mix_tasks_keep_each_in_one_segment_and_stay_in_the_budget(policy: Policy) -> None:
    owners = []
    for name in "abcdef":
        groups, spec = groups_of(name), DIFFERENT["a"]
        (samples,) = weighted_samples(groups, [np.ones(len(group.trajectories)) for group in groups], spec)
        owners.append(rows_of(samples, budget_tokens=BUDGET, width=policy.width))
    found = pack(owners, budget_tokens=BUDGET)
    alone = [packed for owner in owners for packed in pack([owner], budget_tokens=BUDGET)]
    assert len(found) < len(alone)
    assert all(packed.ids_B_T.size <= BUDGET for packed in found)
    for packed in found:
        assert [segment.owner for segment in packed.segments] == sorted({segment.owner for segment in packed.segments})
        for ends, total in (("rows", len(packed.ids_B_T)), ("sampled", len(packed.target_N))):
            bounds = [getattr(segment, ends) for segment in packed.segments]
            assert [bound.start for bound in bounds] == [0, *(bound.stop for bound in bounds[:-1])]
            assert bounds[-1].stop == total
    for owner, rows in enumerate(owners):
        targets = [packed.target_N[s.sampled] for packed in found for s in packed.segments if s.owner == owner]
        expected = [sample.ids_T[sample.sampled_T == 1] for row in rows for sample in row.samples]
        assert np.concatenate(targets).tolist() == np.concatenate(expected).tolist()


class Narrow(Policy):
    """A base model with memory for one task at a time."""

    def scores(self, packed: Packed, adapted: Sequence[Adapted], *, entropy_gradient: bool = False) -> TokenScores:
        if len(adapted) > 1:
            raise torch.OutOfMemoryError("as on a device that is full")
        return super().scores(packed, adapted, entropy_gradient=entropy_gradient)


@asynccontextmanager
async def busy_thread() -> AsyncGenerator[tuple[ThreadPoolExecutor, Event]]:
    """The learner's thread, blocked until the event is set."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        gate = Event()
        thread.submit(gate.wait)
        try:
            yield thread, gate
        finally:
            gate.set()


async def trained(policy: Policy, names: str, *, budget: int = 4096, limit: int = 8) -> list[Trained]:
    """Train steps that are all queued when the thread starts."""
    async with busy_thread() as (thread, gate):
        learner = Learner(policy, thread, budget_tokens=budget, shared_steps=limit)
        asked = [asyncio.ensure_future(learner.train(begin(policy, DIFFERENT[name]), groups_of(name), DIFFERENT[name])) for name in names]
        await asyncio.sleep(0)
        assert learner.waiting == len(names)
        gate.set()
        return await asyncio.gather(*asked)


@pytest.mark.parametrize(("limit", "expected"), [(1, [1, 1, 1, 1]), (3, [3, 3, 3, 1]), (8, [4, 4, 4, 4])])
async def test_steps_that_wait_are_taken_together_as_the_settings_allow(policy: Policy, limit: int, expected: list[int]) -> None:
    found = await trained(policy, "abca", limit=limit)
    assert [result.step.metrics["together"] for result in found] == expected


async def test_a_full_micro_batch_runs_alone(policy: Policy) -> None:
    budget = unpadded_tokens(groups_of("a")) + unpadded_tokens(groups_of("b"))
    found = await trained(policy, "abc", budget=budget)
    assert [result.step.metrics["together"] for result in found] == [2, 2, 1]


async def test_computation_that_fails_together_is_tried_alone(model_folder_policy: Narrow) -> None:
    policy = model_folder_policy
    for name, result in zip("ab", await trained(policy, "ab"), strict=True):
        expected = train_step(policy, begin(policy, DIFFERENT[name]), groups_of(name), DIFFERENT[name], budget_tokens=4096)
        assert_identical(result.step.resident, expected.resident)


@pytest.fixture
def model_folder_policy(model_folder: object) -> Narrow:
    policy = Narrow.load(str(model_folder), torch.device("cpu"))
    assert isinstance(policy, Narrow)
    return policy


class Broken(Policy):
    """A base model on a device that fails at the first gradient."""

    error: Exception = RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …")

    def scores(self, packed: Packed, adapted: Sequence[Adapted], *, entropy_gradient: bool = False) -> TokenScores:
        if torch.is_grad_enabled():
            raise self.error
        return super().scores(packed, adapted, entropy_gradient=entropy_gradient)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_device_that_broke_ends_the_process_and_blames_no_task(model_folder: object, names: str) -> None:
    policy = Broken.load(str(model_folder), torch.device("cpu"))
    with pytest.raises(Fatal, match=r"the device cannot be used any more: CUDA error: an illegal memory access was encountered$"):
        await trained(policy, names)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_step_for_which_there_is_no_memory_is_retried_later(model_folder: object, names: str) -> None:
    policy = Broken.load(str(model_folder), torch.device("cpu"))
    assert isinstance(policy, Broken)
    policy.error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(Retry, match="there is no memory for the step: CUDA out of memory") as caught:
        await trained(policy, names)
    assert caught.value.delay_s >= 30


def test_full_disk_is_distinguished_from_other_errors(tmp_path: Path) -> None:
    """safetensors raises one class for both."""
    with pytest.raises(Unavailable, match=r"the disk under .* cannot be used: .*No such file"), scratch_folder("test") as folder:
        save_file({"a": torch.zeros(1)}, folder / "none" / "a.safetensors")
    with pytest.raises(SafetensorError), scratch_folder("test"):
        (tmp_path / "a.safetensors").write_bytes(b"no tensors")
        load_file(tmp_path / "a.safetensors")


async def test_step_whose_asker_is_gone_is_not_taken(policy: Policy) -> None:
    async with busy_thread() as (thread, gate):
        learner = Learner(policy, thread, budget_tokens=4096, shared_steps=8)
        gone, stays = (
            asyncio.ensure_future(learner.train(begin(policy, DIFFERENT[name]), groups_of(name), DIFFERENT[name])) for name in "ab"
        )
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        gate.set()
        result = await stays
    assert result.step.metrics["together"] == 1
    assert learner.waiting == 0
