"""The trainer's step beside the reference's: same base model, adapter and trajectories."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import peft
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common.spec import TaskSpec
from tests.oracle.reference import ReferenceStep, fixed_logprobs, reference_step
from tests.oracle.settings import MAX_TOKENS, TURNS
from trainer_svc.algorithm.step import StepResult, train_step
from trainer_svc.batch import Group, Trajectory
from trainer_svc.learner import initial_resident
from trainer_svc.model.adapter import write_adapter
from trainer_svc.model.lora import Layout
from trainer_svc.model.policy import Policy
from trainer_svc.state.resident import Resident

AWAY = (-0.8, -0.37, -0.14, 0.02, 0.4, 0.61, 1.0)
"""Log ratios of the step's start to the sampler: on both sides of every bound of `settings.FACTORS`, and so far from each that
rounding to bfloat16 moves no token across."""
BUDGET_TOKENS = 120
"""Few enough that a step has several micro-batches, and long groups several rows."""


@dataclass(frozen=True)
class Compared:
    """Relative errors of the trainer's step."""

    gradient: float
    """Of the first moment, which after one update is the gradient."""
    change: float
    """Of the adapter's change."""
    loss: float
    grad_norm: float


def compared(policy: Policy, model: Path, folder: Path, spec: TaskSpec, *, seed: int) -> Compared:
    """Errors of one step from a random adapter, which is written into `folder`."""
    before = trained_resident(policy, spec)
    write_adapter(folder, before.layout, before.optimizer.params, torch.float32)
    plain = plain_model(model, folder, torch.float32)
    groups = sampled_groups(plain, spec, policy.vocabulary, seed)
    expected = reference_step(plain, groups, spec)
    return errors(before, train_step(policy, before, groups, spec, budget_tokens=BUDGET_TOKENS), expected)


def errors(before: Resident, found: StepResult, expected: ReferenceStep) -> Compared:
    after, layout = found.resident.optimizer, before.layout
    old, new = before.optimizer.params.cpu(), after.params.cpu()
    return Compared(
        relative(after.exp_avg.cpu(), flat(layout, expected.exp_avg)),
        relative(new - old, flat(layout, expected.params) - old),
        abs(found.metrics["loss"] - expected.loss) / max(abs(expected.loss), 0.01),
        abs(found.metrics["grad_norm"] / expected.grad_norm - 1),
    )


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def flat(layout: Layout, named: Mapping[str, Tensor]) -> Tensor:
    """PEFT's tensors in the order of the trainer's vector."""
    names = [f"base_model.model.{module.name}.{matrix}.default.weight" for module in layout.modules for matrix in ("lora_A", "lora_B")]
    return torch.cat([named[name].flatten() for name in names])


def trained_resident(policy: Policy, spec: TaskSpec) -> Resident:
    """Version 0 with an adapter as after training: no part zero."""
    fresh = initial_resident(policy, "oracle", spec)
    random = torch.randn(fresh.layout.size, generator=torch.Generator().manual_seed(1)) * 0.05
    return replace(fresh, optimizer=replace(fresh.optimizer, params=random.to(fresh.optimizer.params.device)))


def plain_model(model: Path, adapter: Path, dtype: torch.dtype) -> peft.PeftModel:
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")
    return peft.PeftModel.from_pretrained(plain, str(adapter), is_trainable=True, autocast_adapter_dtype=False).eval()


def sampled_groups(model: peft.PeftModel, spec: TaskSpec, vocabulary: int, seed: int) -> list[Group]:
    """Groups of random trajectories, whose sampler's log-probabilities are AWAY from the model's. One group has equal rewards."""
    rng = np.random.default_rng(seed)
    groups = [random_group(rng, number, spec, vocabulary) for number in range(spec.algorithm.groups_per_step)]
    found = []
    for group, logprobs in zip(groups, fixed_logprobs(model, groups, spec), strict=True):
        members = []
        for one, logprobs_N in zip(group.trajectories, logprobs, strict=True):
            sampler_T = np.zeros(len(one.ids_T), np.float32)
            # `gspo` takes the mean over a sequence, which must lie at one of these as well
            sampler_T[one.sampled_T == 1] = logprobs_N.numpy() - rng.choice(AWAY, 1 if spec.algorithm.loss == "gspo" else len(logprobs_N))
            members.append(replace(one, sampler_logprobs_T=sampler_T))
        found.append(replace(group, trajectories=tuple(members)))
    return found


def random_group(rng: np.random.Generator, number: int, spec: TaskSpec, vocabulary: int) -> Group:
    prompt = rng.integers(0, vocabulary, rng.integers(4, 9)).tolist()
    members = tuple(
        random_trajectory(rng, member, prompt, vocabulary, equal=number == 1, truncated=(number + member) % 3 == 2)
        for member in range(spec.algorithm.group_size)
    )
    return Group(number, int(rng.integers(0, spec.algorithm.max_staleness + 1)), members)


def random_trajectory(
    rng: np.random.Generator, member: int, prompt: list[int], vocabulary: int, *, equal: bool, truncated: bool
) -> Trajectory:
    """One to three turns, with context after all but the last, and sometimes after that. Rewards stay positive under any penalty."""
    ids, sampled = list(prompt), [0] * len(prompt)
    for turn in range(int(rng.integers(1, TURNS + 1))):
        for own, tokens in ((1, rng.integers(1, MAX_TOKENS + 1)), (0, rng.integers(0 if turn else 1, 4))):
            ids += rng.integers(0, vocabulary, tokens).tolist()
            sampled += [own] * int(tokens)
    sampled_T = np.array(sampled, np.uint8)
    reward = 2.0 if equal else float(rng.choice([1.5, 2.0, 3.0]))
    return Trajectory(member, np.array(ids, np.int32), sampled_T, np.zeros(len(ids), np.float32), reward, truncated)
