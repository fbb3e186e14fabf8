"""A whole step, written from the papers on plain transformers and PEFT: one trajectory at a time, no packing, no shared prompts.

Of the project it takes the task and the trajectories, nothing else. Formulas: docs/algorithms.md, whose sources these are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import peft
import torch
from torch import Tensor

from common.spec import TaskSpec
from trainer_svc.batch import Group, Trajectory

Rewards = list[np.ndarray]
"""One array a group."""


@dataclass(frozen=True)
class ReferenceStep:
    """Means over the step's updates; of the adapter, PEFT's names → tensors."""

    loss: float
    grad_norm: float
    params: dict[str, Tensor]
    exp_avg: dict[str, Tensor]


def reference_step(model: peft.PeftModel, groups: Sequence[Group], spec: TaskSpec) -> ReferenceStep:
    """Take a step of plain AdamW; changes the model's adapter."""
    algorithm, optimizer = spec.algorithm, spec.optimizer
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    adamw = torch.optim.AdamW(
        named.values(), lr=optimizer.learning_rate, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay
    )
    step_advantages = advantages(shaped_rewards(groups, spec), algorithm.advantage)
    start = fixed_logprobs(model, groups, spec)
    with model.disable_adapter():
        base = fixed_logprobs(model, groups, spec)
    losses, norms = [], []
    for _ in range(algorithm.passes):
        for first in range(algorithm.minibatches):
            dealt = list(range(first, len(groups), algorithm.minibatches))
            model.zero_grad()
            losses.append(0.0)
            members = [(group, member) for group in dealt for member in range(len(groups[group].trajectories))]
            for (group, member), weight in zip(members, token_weights([groups[group] for group in dealt], spec), strict=True):
                one, fixed = groups[group].trajectories[member], (start[group][member], base[group][member])
                loss = -weight * token_objectives(model, one, spec, step_advantages[group][member], *fixed).sum()
                loss.backward()
                losses[-1] += loss.item()
            norms.append(torch.cat([parameter.grad.flatten().double() for parameter in named.values()]).norm().item())
            torch.nn.utils.clip_grad_norm_(named.values(), optimizer.clip_norm)
            adamw.step()
    return ReferenceStep(
        float(np.mean(losses)),
        float(np.mean(norms)),
        {name: parameter.detach().clone() for name, parameter in named.items()},
        {name: adamw.state[parameter]["exp_avg"] for name, parameter in named.items()},
    )


# ------------------------------------------------------------------------------------------------------ rewards


def shaped_rewards(groups: Sequence[Group], spec: TaskSpec) -> Rewards:
    """Rewards, less DAPO's soft punishment of long replies (2503.14476, eq. 13)."""
    found = [np.array([one.reward for one in group.trajectories]) for group in groups]
    if spec.overlong.rule != "penalize":
        return found
    whole, buffer = spec.overlong.per == "trajectory", spec.overlong.buffer_tokens
    maximum = spec.sampling.max_tokens * (spec.limits.max_turns if whole else 1)
    for rewards, group in zip(found, groups, strict=True):
        for place, one in enumerate(group.trajectories):
            length = int(one.sampled_T.sum()) if whole else longest_turn(one.sampled_T)
            used = length - (maximum - buffer)
            rewards[place] -= spec.overlong.penalty * min(1.0, max(0.0, used / buffer))
    return found


def longest_turn(sampled_T: np.ndarray) -> int:
    """Tokens of the longest stretch that was sampled without context in between."""
    return max(len(stretch) for stretch in "".join("x" if own else " " for own in sampled_T).split())


def advantages(rewards: Rewards, kind: str) -> Rewards:
    """Advantages as the papers define them; those within a group are zero where all its rewards are equal."""
    everyone = np.concatenate(rewards)
    centred = np.concatenate([group - group.mean() for group in rewards])
    rules: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "grpo": lambda group: (group - group.mean()) / (group.std(ddof=1) + 1e-4),
        "dr_grpo": lambda group: group - group.mean(),
        "rloo": lambda group: np.array([own - np.delete(group, place).mean() for place, own in enumerate(group)]),
        "maxrl": lambda group: (group - group.mean()) / group.mean(),
        "reinforce_pp": lambda group: (group - everyone.mean()) / (everyone.std() + 1e-8),
        "reinforce_pp_baseline": lambda group: (group - group.mean()) / (centred.std() + 1e-8),
    }
    return [group * 0 if kind != "reinforce_pp" and group.min() == group.max() else rules[kind](group) for group in rewards]


def token_weights(groups: Sequence[Group], spec: TaskSpec) -> Iterator[float]:
    """Weight of each token of each trajectory of an update; 0 for those that `overlong` leaves out."""
    lengths = [
        0 if one.truncated and spec.overlong.rule == "mask" else int(one.sampled_T.sum()) for group in groups for one in group.trajectories
    ]
    for length in lengths:
        if length == 0:
            yield 0.0
        elif spec.algorithm.normalize == "token":
            yield 1 / sum(lengths)
        elif spec.algorithm.normalize == "sequence":
            yield 1 / (len(lengths) * length)
        else:
            yield 1 / (len(lengths) * spec.limits.max_turns * spec.sampling.max_tokens)


# -------------------------------------------------------------------------------------------------- the objective


def token_objectives(model: peft.PeftModel, one: Trajectory, spec: TaskSpec, advantage: float, start_N: Tensor, base_N: Tensor) -> Tensor:
    """What each sampled token contributes, before its weight, with gradient. Shapes: (N,) float64."""
    algorithm, correction = spec.algorithm, spec.correction
    logprobs_N, entropy_N = logprobs_and_entropy(model, one, spec.sampling.temperature)
    sampler_N = torch.from_numpy(one.sampler_logprobs_T[one.sampled_T == 1]).double()
    proximal_N = sampler_N if correction.proximal == "sampler" else start_N
    ratio_N = torch.exp(logprobs_N - proximal_N)
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    match algorithm.loss:
        case "ppo" | "gspo":
            if algorithm.loss == "gspo":
                ratio_N = torch.exp((logprobs_N - proximal_N).sum() / len(logprobs_N)).repeat(len(logprobs_N))
            surrogate_N = torch.min(ratio_N * advantage, ratio_N.clip(low, high) * advantage)
            if algorithm.dual_clip is not None and advantage < 0:
                surrogate_N = torch.max(surrogate_N, torch.tensor(algorithm.dual_clip * advantage, dtype=torch.float64))
        case "cispo":
            surrogate_N = ratio_N.detach().clip(low, high) * advantage * logprobs_N
        case "reinforce":
            surrogate_N = ratio_N * advantage
    from_sampler_N = torch.exp(start_N - sampler_N)
    if correction.proximal == "start":
        surrogate_N = surrogate_N * from_sampler_N.clip(max=correction.truncate)
    surrogate_N = surrogate_N * (from_sampler_N >= correction.mask_low)
    if correction.mask_high is not None:
        surrogate_N = surrogate_N * (from_sampler_N <= correction.mask_high)
    difference_N = logprobs_N - base_N
    estimates_N = {"k1": difference_N, "k2": difference_N**2 / 2, "k3": torch.exp(-difference_N) - 1 + difference_N}
    return surrogate_N - algorithm.kl_coefficient * estimates_N[algorithm.kl_estimator] + algorithm.entropy_coefficient * entropy_N


def fixed_logprobs(model: peft.PeftModel, groups: Sequence[Group], spec: TaskSpec) -> list[list[Tensor]]:
    """Log-probabilities without gradient, by group and member."""
    with torch.no_grad():
        return [[logprobs_and_entropy(model, one, spec.sampling.temperature)[0] for one in group.trajectories] for group in groups]


def logprobs_and_entropy(model: peft.PeftModel, one: Trajectory, temperature: float) -> tuple[Tensor, Tensor]:
    """Of the sampled tokens. Shapes: (N,) float64."""
    ids_T = torch.from_numpy(one.ids_T.astype(np.int64))
    log_all = torch.log_softmax(model(input_ids=ids_T[None]).logits[0].double() / temperature, dim=-1)
    places = np.flatnonzero(one.sampled_T)
    before = log_all[places - 1]
    return before[torch.arange(len(places)), ids_T[places]], -(before.exp() * before).sum(-1)
