"""Tasks whose settings differ in every way, and their steps, for tests."""

from dataclasses import replace

import torch

from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec, pack_alone
from trainer_svc.algorithm.advantage import shaped_rewards, step_advantages
from trainer_svc.algorithm.step import StepResult, train_step, weighted_samples
from trainer_svc.batch import Group
from trainer_svc.learner import initial_resident
from trainer_svc.model.packing import Packed
from trainer_svc.model.policy import Policy
from trainer_svc.state.resident import Resident

BUDGET = 512
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


def packed_samples(groups: list[Group], spec: TaskSpec, *, budget: int = BUDGET, shared: bool = True) -> list[Packed]:
    """Micro-batches of a whole step, as one minibatch."""
    spec = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"minibatches": 1})})
    advantages = step_advantages([shaped_rewards(group, spec) for group in groups], spec.algorithm.advantage)
    (samples,) = weighted_samples(groups, advantages, spec)
    return pack_alone(samples, budget_tokens=budget, shared=shared)


def changed(groups: list[Group], **change: object) -> list[Group]:
    return [replace(group, trajectories=tuple(replace(t, **change) for t in group.trajectories)) for group in groups]


def assert_identical(found: Resident, expected: Resident) -> None:
    assert (found.version, found.next_group) == (expected.version, expected.next_group)
    assert found.layout == expected.layout
    for name in ("params", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(found.optimizer, name), getattr(expected.optimizer, name)), name
