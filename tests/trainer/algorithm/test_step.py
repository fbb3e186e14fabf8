"""One optimizer step, and many: isolation between tasks, resuming, order, and what a bad task may do."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import Reject
from common.spec import TaskSpec
from tests.trainer.conftest import VOCABULARY, make_groups, make_spec, pack_alone
from trainer_svc.algorithm.advantage import step_advantages
from trainer_svc.algorithm.batched_steps import Gradient, answer
from trainer_svc.algorithm.reward_shaping import shaped_rewards
from trainer_svc.algorithm.step import StepResult, train_step, weighted_samples
from trainer_svc.algorithm.step import step as step_of
from trainer_svc.batch import Group
from trainer_svc.learner import initial_resident
from trainer_svc.model.adapter import WEIGHTS_FILE, write_adapter
from trainer_svc.model.packing import Packed
from trainer_svc.model.policy import Adapted, Policy
from trainer_svc.state.checkpoint import Origin, read_checkpoint, spec_digest, write_checkpoint
from trainer_svc.state.optimizer import OptimizerState
from trainer_svc.state.resident import Resident, Residents

BUDGET = 512
CPU = torch.device("cpu")
DIFFERENT = {
    "a": make_spec("a", seed=1, optimizer={"weight_decay": 0.1, "clip_norm": 0.05}),
    "b": make_spec(
        "b",
        seed=2,
        lora={"rank": 3, "alpha": 7, "targets": ["q_proj", "down_proj"]},
        optimizer={"learning_rate": 0.01, "betas": [0.5, 0.8], "eps": 1e-6, "warmup_steps": 2},
        algorithm={"advantage": "rloo", "normalize": "sequence", "clip_high": 0.4},
        sampling={"temperature": 0.8},
    ),
    "c": make_spec("c", seed=3, lora={"rank": 16}, algorithm={"advantage": "dr_grpo", "normalize": "constant"}),
    "d": make_spec(
        "d",
        seed=4,
        lora={"rank": 4, "rank_stabilized": True},
        optimizer={"schedule": "cosine", "warmup_steps": 1, "learning_rate": 0.004},
        algorithm={"passes": 2, "minibatches": 2, "advantage": "reinforce_pp_baseline", "dual_clip": 3.0, "kl_coefficient": 0.1},
        correction={"proximal": "start", "truncate": 1.5, "mask_low": 0.1, "mask_high": 4},
    ),
    "e": make_spec(
        "e",
        seed=5,
        optimizer={"schedule": "linear", "final_share": 0.1},
        algorithm={"loss": "gspo", "advantage": "maxrl", "normalize": "sequence", "entropy_coefficient": 0.01, "passes": 2},
        overlong={"rule": "mask"},
    ),
    "f": make_spec(
        "f",
        seed=6,
        algorithm={"loss": "cispo", "advantage": "reinforce_pp", "kl_coefficient": 0.2, "kl_estimator": "k2"},
        overlong={"rule": "penalize", "buffer_tokens": 60},
    ),
}


def begin(policy: Policy, spec: TaskSpec) -> Resident:
    return initial_resident(policy, spec.name, spec)


def step(policy: Policy, resident: Resident, spec: TaskSpec, groups: list[Group] | None = None) -> StepResult:
    return train_step(policy, resident, groups or make_groups(100 + resident.version), spec, budget_tokens=BUDGET)


def run(policy: Policy, spec: TaskSpec, steps: int) -> Resident:
    resident = begin(policy, spec)
    for _ in range(steps):
        resident = step(policy, resident, spec).resident
    return resident


def write(folder: Path, resident: Resident, spec: TaskSpec) -> None:
    """As after a step whose origin does not matter."""
    write_adapter(folder / "adapter", resident.layout, resident.optimizer.params, torch.float32)
    write_checkpoint(folder, resident, spec, Origin("0" * 64, "1" * 64), folder / "adapter" / WEIGHTS_FILE)


def packed_samples(groups: list[Group], spec: TaskSpec, *, budget: int = BUDGET, shared: bool = True) -> list[Packed]:
    """All of a step at once, in whatever number of minibatches the task would take it."""
    spec = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"minibatches": 1})})
    advantages = step_advantages([shaped_rewards(group, spec) for group in groups], spec.algorithm.advantage)
    (samples,) = weighted_samples(groups, advantages, spec)
    return pack_alone(samples, budget_tokens=budget, shared=shared)


def gradient(
    policy: Policy, resident: Resident, groups: list[Group], spec: TaskSpec, *, budget: int = BUDGET, shared: bool = True
) -> Gradient:
    """Of the step's first update, as one minibatch."""
    spec = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"minibatches": 1})})
    policy.shares_prefixes = shared
    try:
        running, found = step_of(policy, resident, groups, spec, budget_tokens=budget), None
        while found is None or found.gradient is None:
            demand = next(running) if found is None else running.send(found)
            (found,) = answer(policy, [demand], budget_tokens=budget)
    finally:
        policy.shares_prefixes = True
    return found.gradient


def assert_identical(found: Resident, expected: Resident) -> None:
    assert (found.version, found.next_group) == (expected.version, expected.next_group)
    assert found.layout == expected.layout
    for name in ("params", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(found.optimizer, name), getattr(expected.optimizer, name)), name


def test_interleaved_tasks_equal_tasks_alone_bit_for_bit(policy: Policy) -> None:
    alone = {name: run(policy, spec, 4) for name, spec in DIFFERENT.items()}
    together = {name: begin(policy, spec) for name, spec in DIFFERENT.items()}
    for name in "abcdefbdcfaecabefdacbdef":
        together[name] = step(policy, together[name], DIFFERENT[name]).resident
    for name in DIFFERENT:
        assert_identical(together[name], alone[name])
        assert not torch.equal(alone[name].optimizer.params, begin(policy, DIFFERENT[name]).optimizer.params)


@pytest.mark.parametrize("order", ["bd", "db"])
def test_what_another_task_computes_amid_a_step_changes_no_bit_of_it(policy: Policy, order: str) -> None:
    """Both need the base model several times, each time in several micro-batches, and take turns at it, whoever begins."""
    residents = {name: begin(policy, DIFFERENT[name]) for name in order}
    groups = {name: make_groups(ord(name), groups=4) for name in order}
    running = {name: step_of(policy, residents[name], groups[name], DIFFERENT[name], budget_tokens=64) for name in order}
    found, asked = dict[str, StepResult](), {name: next(one) for name, one in running.items()}
    turns = 0
    while asked:
        for name in [name for name in order if name in asked]:
            (answered,) = answer(policy, [asked.pop(name)], budget_tokens=64)
            turns += answered.micro_batches
            try:
                asked[name] = running[name].send(answered)
            except StopIteration as finished:
                found[name] = finished.value
    assert turns > 8
    for name in order:
        alone = train_step(policy, residents[name], groups[name], DIFFERENT[name], budget_tokens=64)
        assert_identical(found[name].resident, alone.resident)
        assert found[name].canary == alone.canary


def test_a_step_touches_nothing_of_the_base_model_or_of_what_went_in(policy: Policy) -> None:
    before = begin(policy, DIFFERENT["a"])
    copies = [before.optimizer.params.clone(), before.optimizer.exp_avg.clone(), before.optimizer.exp_avg_sq.clone()]
    weights = {name: layer.weight.clone() for name, layer in policy.layers.items()}
    step(policy, before, DIFFERENT["a"])
    for found, expected in zip((before.optimizer.params, before.optimizer.exp_avg, before.optimizer.exp_avg_sq), copies, strict=True):
        assert torch.equal(found, expected)
    assert before.optimizer.params.grad is None
    for name, layer in policy.layers.items():
        assert torch.equal(layer.weight, weights[name])
        assert layer.weight.grad is None


def test_gradient_is_clipped_to_the_tasks_own_norm(policy: Policy) -> None:
    for clip_norm in (0.05, 1e6):
        spec = make_spec("a", optimizer={"clip_norm": clip_norm, "betas": [0.9, 0.99]})
        result = step(policy, begin(policy, spec), spec)
        unclipped = result.metrics["grad_norm"]
        assert unclipped > 0.1
        moment = torch.linalg.vector_norm(result.resident.optimizer.exp_avg).item()
        assert moment == pytest.approx(0.1 * min(clip_norm, unclipped), rel=1e-4)


@pytest.mark.parametrize("name", ["b", "d"])
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(policy: Policy, tmp_path: Path, name: str) -> None:
    spec = DIFFERENT[name]
    expected = run(policy, spec, 4)
    write(tmp_path, run(policy, spec, 2), spec)
    resumed = read_checkpoint(tmp_path, name, 2, spec, CPU)
    for _ in range(2):
        resumed = step(policy, resumed, spec).resident
    assert_identical(resumed, expected)


def test_checkpoint_is_the_same_bytes_each_time(policy: Policy, tmp_path: Path) -> None:
    resident = run(policy, DIFFERENT["a"], 1)
    for name in ("one", "two"):
        write(tmp_path / name, resident, DIFFERENT["a"])
    for file in ("state.safetensors", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_checkpoint_of_another_task_version_or_spec_is_refused(policy: Policy, tmp_path: Path) -> None:
    spec = DIFFERENT["a"]
    write(tmp_path, run(policy, spec, 1), spec)
    for task, version, other in (("b", 1, spec), ("a", 2, spec), ("a", 1, DIFFERENT["b"])):
        with pytest.raises(Reject, match="checkpoint is of"):
            read_checkpoint(tmp_path, task, version, other, CPU)


def test_damaged_checkpoint_is_refused(policy: Policy, tmp_path: Path) -> None:
    spec = DIFFERENT["a"]
    write(tmp_path, run(policy, spec, 1), spec)
    state = bytearray((tmp_path / "state.safetensors").read_bytes())
    state[-1] ^= 1
    (tmp_path / "state.safetensors").write_bytes(state)
    with pytest.raises(Reject, match="damaged"):
        read_checkpoint(tmp_path, "a", 1, spec, CPU)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(Reject, match=r"manifest\.json cannot be read"):
        read_checkpoint(tmp_path, "a", 1, spec, CPU)


def test_spec_digest_ignores_fields_at_their_defaults() -> None:
    assert spec_digest(make_spec("a", lora={"rank": 8})) == spec_digest(make_spec("a"))
    assert spec_digest(make_spec("a", lora={"rank": 4})) != spec_digest(make_spec("a"))


def test_spec_digest_of_a_task_that_was_stored_when_every_adapter_was_kept_stays() -> None:
    """Its checkpoints name the digest of then, when `all` was what nothing said."""
    said = make_spec("a").model_dump(mode="json", exclude_defaults=True)
    then = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    assert spec_digest(make_spec("a", keep={"adapters": "all"})) == then
    chosen = said | {"keep": {"adapters": "checkpoints", "checkpoints": 3}}
    then = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
    assert spec_digest(make_spec("a", keep={"adapters": "checkpoints", "checkpoints": 3})) == then


@pytest.mark.parametrize("name", [*DIFFERENT])
def test_gradient_does_not_depend_on_how_the_step_is_split(policy: Policy, name: str) -> None:
    spec, groups = DIFFERENT[name], make_groups(5, groups=4, size=4, turns=2)
    resident = run(policy, spec, 1)
    whole, *others = (
        gradient(policy, resident, groups, spec, budget=budget, shared=shared)
        for budget, shared in ((100_000, True), (64, True), (100_000, False), (64, False))
    )
    for other in others:
        torch.testing.assert_close(other.vector, whole.vector, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other.loss, whole.loss, rtol=1e-4, atol=1e-6)
        for field in ("log_ratio_N", "clipped_N", "masked_N", "entropy_N", "kl_base_N", "staleness_N"):
            found, expected = getattr(other.measured, field), getattr(whole.measured, field)
            np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=1e-3, atol=1e-3, err_msg=field)


def test_budget_splits_a_step_and_sharing_saves_tokens() -> None:
    spec, groups = DIFFERENT["a"], make_groups(5, groups=4, size=4, turns=2)
    whole, split, unshared = (
        packed_samples(groups, spec, budget=budget, shared=shared) for budget, shared in ((100_000, True), (64, True), (100_000, False))
    )
    assert len(split) > len(whole)
    assert sum(packed.ids_B_T.size for packed in unshared) > sum(packed.ids_B_T.size for packed in whole)


def test_gradient_does_not_depend_on_the_order_of_trajectories(policy: Policy) -> None:
    spec, groups = DIFFERENT["a"], make_groups(5)
    resident = run(policy, spec, 1)
    backwards = [replace(group, trajectories=group.trajectories[::-1]) for group in groups[::-1]]
    one, two = (gradient(policy, resident, order, spec) for order in (groups, backwards))
    torch.testing.assert_close(two.vector, one.vector, rtol=1e-4, atol=1e-6)


def test_group_with_equal_rewards_pulls_nowhere(policy: Policy) -> None:
    spec = DIFFERENT["c"]
    groups = [
        replace(group, trajectories=tuple(replace(trajectory, reward=0.3) for trajectory in group.trajectories)) for group in make_groups(5)
    ]
    result = step(policy, begin(policy, spec), spec, groups)
    assert result.metrics["grad_norm"] == 0
    assert torch.equal(result.resident.optimizer.params, begin(policy, spec).optimizer.params)


def test_tokens_that_were_not_sampled_have_no_part_in_the_loss(policy: Policy) -> None:
    """Logprobs at masked places, and all that follows the last sampled token, may be anything."""
    spec, groups = DIFFERENT["a"], make_groups(5, turns=2)
    changed = [
        replace(
            group,
            trajectories=tuple(
                replace(
                    trajectory,
                    sampler_logprobs_T=np.where(trajectory.sampled_T == 1, trajectory.sampler_logprobs_T, np.float32(99)),
                )
                for trajectory in group.trajectories
            ),
        )
        for group in groups
    ]
    resident = begin(policy, spec)
    assert_identical(step(policy, resident, spec, changed).resident, step(policy, resident, spec, groups).resident)


def test_policy_learns_what_is_rewarded(policy: Policy) -> None:
    """Rewarded replies become likelier, the others rarer, after a few steps on the same group."""
    spec = make_spec("a", optimizer={"learning_rate": 0.01}, algorithm={"clip_low": 0.9, "clip_high": 9})
    groups = make_groups(11, groups=2, staleness=1)
    resident = begin(policy, spec)

    def margin(resident: Resident) -> float:
        (packed,) = packed_samples(groups, spec, budget=9999)
        with torch.no_grad():
            logprobs_N = policy.scores(packed, [Adapted(resident.layout, resident.optimizer.params)]).logprobs_N
        return float((logprobs_N * torch.from_numpy(packed.advantages_N)).mean())

    before = margin(resident)
    for _ in range(5):
        resident = step(policy, resident, spec, groups).resident
    assert margin(resident) > before + 0.1


def test_metrics_say_what_happened(policy: Policy) -> None:
    groups = [replace(group, staleness=group.group) for group in make_groups(5)]
    result = step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], groups)
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    assert result.metrics["reward_mean"] == 0.25
    assert result.metrics["reward_std"] == pytest.approx(math.sqrt(0.25 * 0.75))
    assert result.metrics["tokens"] == sum(trajectory.sampled_tokens for trajectory in trajectories)
    assert result.metrics["response_length"] == pytest.approx(result.metrics["tokens"] / 12)
    assert (result.metrics["staleness_mean"], result.metrics["staleness_max"]) == (1.0, 2.0)
    assert result.metrics["truncated_share"] == 0.5
    assert 0 < result.metrics["entropy"] < math.log(VOCABULARY)
    assert result.metrics["kl_sampler"] > 0
    assert result.metrics["ratio_max"] >= result.metrics["ratio_p99"] >= result.metrics["ratio_mean"]
    shares = [result.metrics[f"ratio.{edge}"] for edge in ("0.5", "0.8", "0.9", "0.97", "1.03", "1.1", "1.25", "2")]
    assert 0 < shares[0] < shares[-1] < 1
    assert shares == sorted(shares)
    assert 0 < result.metrics["effective_sample_share"] < 1
    assert result.metrics["sampler_mismatch"] > 0
    assert {stale: result.metrics[f"staleness.{stale}"] for stale in range(3)} == pytest.approx({0: 1 / 3, 1: 1 / 3, 2: 1 / 3})
    assert result.metrics["response_length_max"] == max(trajectory.sampled_tokens for trajectory in trajectories)
    assert result.metrics["zero_variance_share"] == 0
    assert result.metrics["updates"] == 1
    assert result.metrics["masked_fraction"] == 0
    assert "kl_base" not in result.metrics
    assert 0 < result.metrics["clip_fraction"] < 1
    assert result.trained_tokens == sum(len(trajectory.ids_T) for trajectory in trajectories)


@pytest.mark.parametrize(("number", "words"), [(math.nan, "loss is nan"), (math.inf, "is (nan|inf)")])
def test_numbers_that_are_not_finite_reject_the_step_and_leave_the_state(policy: Policy, number: float, words: str) -> None:
    spec = DIFFERENT["a"]
    good = run(policy, spec, 1)
    params = good.optimizer.params.clone()
    params[3] = number
    bad = Resident("a", good.layout, OptimizerState(params, good.optimizer.exp_avg, good.optimizer.exp_avg_sq, 1), version=1)
    with pytest.raises(Reject, match=f"task a, step from version 1: .*{words}"):
        step(policy, bad, spec)
    assert_identical(step(policy, good, spec).resident, run(policy, spec, 2))


def test_update_that_is_not_finite_is_rejected_too(policy: Policy) -> None:
    spec, good = DIFFERENT["a"], run(policy, DIFFERENT["a"], 1)
    moments = torch.full_like(good.optimizer.exp_avg_sq, math.nan)
    bad = replace(good, optimizer=replace(good.optimizer, exp_avg_sq=moments))
    with pytest.raises(Reject, match="parameter norm is nan"):
        step(policy, bad, spec)


def test_batch_without_sampled_tokens_is_rejected(policy: Policy) -> None:
    (group,) = make_groups(5, groups=1)
    empty = replace(group, trajectories=tuple(replace(t, sampled_T=np.zeros_like(t.sampled_T)) for t in group.trajectories))
    with pytest.raises(Reject, match="no sampled token"):
        step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], [empty])


def test_least_recently_trained_task_gives_way(policy: Policy) -> None:
    residents = Residents(limit=2)
    kept = {name: begin(policy, spec) for name, spec in DIFFERENT.items()}
    residents.keep(kept["a"], "a1")
    residents.keep(kept["b"], "b1")
    assert residents.get("a", "a1") is kept["a"]
    residents.keep(kept["c"], "c1")
    assert residents.get("b", "b1") is None
    assert residents.get("a", "a1") is kept["a"]
    assert residents.get("a", "a2") is None
    residents.forget("a")
    assert residents.get("a", "a1") is None
    assert len(residents) == 1


def test_large_states_give_way_before_there_are_too_many(policy: Policy) -> None:
    small, large, other = (begin(policy, DIFFERENT[name]) for name in "bca")
    assert small.size_bytes == 12 * small.optimizer.params.numel()
    residents = Residents(limit=8, limit_bytes=large.size_bytes + small.size_bytes)
    for resident in (small, large):
        residents.keep(resident, "1")
    assert (len(residents), residents.size_bytes) == (2, large.size_bytes + small.size_bytes)
    residents.keep(other, "1")
    assert residents.get("b", "1") is None
    assert residents.size_bytes <= large.size_bytes + small.size_bytes
    nothing_fits = Residents(limit=8, limit_bytes=1)
    nothing_fits.keep(small, "1")
    assert len(nothing_fits) == 0


def changed(groups: list[Group], **change: object) -> list[Group]:
    return [replace(group, trajectories=tuple(replace(t, **change) for t in group.trajectories)) for group in groups]  # pyright: ignore[reportArgumentType]


def agreeing(policy: Policy, resident: Resident, spec: TaskSpec, groups: list[Group]) -> list[Group]:
    """The same trajectories, with the log-probabilities that this policy itself gives them, as its sampler would."""
    found = []
    for group in groups:
        members = []
        for trajectory in group.trajectories:
            (packed,) = packed_samples([replace(group, trajectories=(trajectory, trajectory))], spec, shared=False)
            with torch.no_grad():
                scores = policy.scores(packed, [Adapted(resident.layout, resident.optimizer.params, spec.sampling.temperature)])
            logprobs_T = np.zeros(len(trajectory.ids_T), np.float32)
            logprobs_T[trajectory.sampled_T == 1] = scores.logprobs_N[: trajectory.sampled_tokens].numpy()
            members.append(replace(trajectory, sampler_logprobs_T=logprobs_T))
        found.append(replace(group, trajectories=tuple(members)))
    return found


def test_agreeing_sampler_shows_no_mismatch_and_every_sample_counts(policy: Policy) -> None:
    spec = DIFFERENT["a"]
    resident = begin(policy, spec)
    result = step(policy, resident, spec, agreeing(policy, resident, spec, make_groups(5)))
    assert result.metrics["sampler_mismatch"] < 1e-9
    assert result.metrics["effective_sample_share"] == pytest.approx(1, abs=1e-6)
    assert result.metrics["ratio_max"] == pytest.approx(1, abs=1e-4)


def test_sampler_that_disagrees_fails_the_step_unless_staleness_explains_it(policy: Policy) -> None:
    spec = make_spec("a", correction={"max_sampler_mismatch": 0.01})
    resident = begin(policy, spec)
    groups = agreeing(policy, resident, spec, make_groups(5))
    step(policy, resident, spec, groups)
    off = [
        replace(g, trajectories=tuple(replace(t, sampler_logprobs_T=t.sampler_logprobs_T - np.float32(0.2)) for t in g.trajectories))
        for g in groups
    ]
    with pytest.raises(Reject, match=r"task a, step from version 0: .*mismatch 0\.02 nats, but correction.max_sampler_mismatch is 0\.01"):
        step(policy, resident, spec, off)
    stale = step(policy, resident, spec, [replace(group, staleness=1) for group in off])
    assert "sampler_mismatch" not in stale.metrics


def test_passes_and_minibatches_are_updates_of_one_version(policy: Policy) -> None:
    groups = make_groups(5, groups=4)
    for passes, minibatches in ((1, 2), (3, 1), (2, 4)):
        spec = make_spec("a", algorithm={"passes": passes, "minibatches": minibatches})
        result = step(policy, begin(policy, spec), spec, groups)
        assert (result.resident.version, result.resident.optimizer.steps) == (1, passes * minibatches)
        assert result.metrics["updates"] == passes * minibatches
        assert result.metrics["tokens"] == sum(t.sampled_tokens for group in groups for t in group.trajectories)


def test_second_pass_is_clipped_around_the_policy_at_the_start_of_the_step(policy: Policy) -> None:
    """With a huge rate the second pass is far from the start, so tokens that should rise or fall are clipped."""
    spec = make_spec("a", algorithm={"passes": 2}, correction={"proximal": "start"}, optimizer={"learning_rate": 0.05})
    resident = begin(policy, spec)
    once = make_spec("a", correction={"proximal": "start"}, optimizer={"learning_rate": 0.05})
    groups = agreeing(policy, resident, spec, make_groups(5))
    assert step(policy, resident, once, groups).metrics["clip_fraction"] == 0
    assert step(policy, resident, spec, groups).metrics["clip_fraction"] > 0.1


def test_pull_to_the_base_model_keeps_the_policy_near_it(policy: Policy) -> None:
    def distance(kl_coefficient: float) -> float:
        spec = make_spec("a", algorithm={"kl_coefficient": kl_coefficient}, optimizer={"learning_rate": 0.01})
        resident, metrics = begin(policy, spec), {}
        for _ in range(6):
            result = step(policy, resident, spec, make_groups(5, staleness=1))
            resident, metrics = result.resident, result.metrics
        return metrics["kl_base"]

    first = step(policy, begin(policy, DIFFERENT["f"]), DIFFERENT["f"])
    assert first.metrics["kl_base"] == 0  # version 0 is the base model
    assert 0 < distance(10.0) < distance(1e-6) / 2


def test_entropy_bonus_spreads_probabilities(policy: Policy) -> None:
    def entropy(coefficient: float) -> float:
        spec = make_spec("a", algorithm={"entropy_coefficient": coefficient}, optimizer={"learning_rate": 0.01})
        resident, found = begin(policy, spec), 0.0
        for _ in range(5):
            result = step(policy, resident, spec, make_groups(5, staleness=1))
            resident, found = result.resident, result.metrics["entropy"]
        return found

    assert entropy(1.0) > entropy(0.0) + 0.05


def test_masked_attempts_pull_nowhere_but_count_in_their_group(policy: Policy) -> None:
    spec = make_spec("a", overlong={"rule": "mask"})
    groups = make_groups(5)
    resident = begin(policy, spec)
    everything_cut_off = step(policy, resident, spec, changed(groups, truncated=True))
    assert everything_cut_off.metrics["grad_norm"] == 0
    nothing_cut_off = step(policy, resident, spec, changed(groups, truncated=False))
    assert_identical(nothing_cut_off.resident, step(policy, resident, make_spec("a"), groups).resident)
    assert 0 < step(policy, resident, spec, groups).metrics["grad_norm"] != nothing_cut_off.metrics["grad_norm"]


def test_rank_within_a_group_is_trained_on_as_reward_is(policy: Policy) -> None:
    by_rank = make_spec("a", environment={"name": "e", "rank_weights": {"length": -1.0}})
    groups = [
        replace(group, trajectories=tuple(replace(t, reward=1.0, components={"length": float(t.member)}) for t in group.trajectories))
        for group in make_groups(5)
    ]
    resident = begin(policy, make_spec("a"))
    assert step(policy, resident, make_spec("a"), groups).metrics["grad_norm"] == 0
    ranked = step(policy, resident, by_rank, groups)
    assert ranked.metrics["grad_norm"] > 0
    assert ranked.metrics["reward.length"] == 1.5
    spelt_out = [
        replace(group, trajectories=tuple(replace(t, reward=1.0 - t.member / (len(group.trajectories) - 1)) for t in group.trajectories))
        for group in groups
    ]
    assert_identical(ranked.resident, step(policy, resident, make_spec("a"), spelt_out).resident)


def test_reward_components_are_reported_by_name(policy: Policy) -> None:
    (first, *others) = make_groups(5)
    trajectories = tuple(replace(t, components={"format": float(t.member), "odd": math.nan}) for t in first.trajectories)
    result = step(policy, begin(policy, DIFFERENT["a"]), DIFFERENT["a"], [replace(first, trajectories=trajectories), *others])
    assert result.metrics["reward.format"] == 1.5
    assert "reward.odd" not in result.metrics
