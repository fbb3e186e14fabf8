"""AdamW on one vector, and updates that were skipped because their numbers were not finite. Pure.

An update returns a new state, so a failed step changes nothing. Too many skips fail the task. The limit counts steps, not updates: with
several passes or minibatches one bad batch causes several bad updates.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from common.spec import Optimizer

WINDOW_STEPS = 100
"""Latest steps, including the current one, in which skips are counted."""


MAX_IN_WINDOW = 10
"""Maximum steps with a skipped update in the window. Absolute, so that one early skip is not a large share of few steps."""


MAX_IN_A_ROW = 3
"""Maximum consecutive steps with a skipped update."""


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """An adapter's master weights and moments. Shapes: (P,) float32 each."""

    params: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    steps: int
    """Number of updates so far."""

    @property
    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.params, self.exp_avg, self.exp_avg_sq

    @classmethod
    def fresh(cls, params: Tensor) -> "OptimizerState":
        return cls(params, torch.zeros_like(params), torch.zeros_like(params), steps=0)


def learning_rate(spec: Optimizer, version: int, steps: int) -> float:
    """Learning rate of the step from `version`, of a task with `steps` steps.

    Warm-up is linear and has no step with rate zero. Then the rate is constant, or decays linearly or by a half cosine to
    `final_share`, which the step after the last would reach.
    """
    if version < spec.warmup_steps:
        return spec.learning_rate * ((version + 1) / (spec.warmup_steps + 1))
    done = min(1.0, (version - spec.warmup_steps) / max(1, steps - spec.warmup_steps))
    match spec.schedule:
        case "constant":
            return spec.learning_rate
        case "linear":
            left = 1 - done
        case "cosine":
            left = (1 + math.cos(math.pi * done)) / 2
    return spec.learning_rate * (spec.final_share + (1 - spec.final_share) * left)


def clip(gradient: Tensor, clip_norm: float) -> tuple[Tensor, Tensor]:
    """Gradient clipped to L2 norm `clip_norm`, and its norm before clipping (a scalar)."""
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (clip_norm / norm.clamp(min=clip_norm)), norm


def adamw(state: OptimizerState, gradient: Tensor, spec: Optimizer, rate: float) -> OptimizerState:
    """One update at learning rate `rate`. Source: AdamW, arXiv 1711.05101, algorithm 2; weight decay is scaled by the rate, as in torch."""
    beta1, beta2 = spec.betas
    steps = state.steps + 1
    exp_avg = state.exp_avg.lerp(gradient, 1 - beta1)
    exp_avg_sq = (state.exp_avg_sq * beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (exp_avg_sq / (1 - beta2**steps)).sqrt_().add_(spec.eps)
    params = (state.params * (1 - rate * spec.weight_decay)).addcdiv_(exp_avg, denominator, value=-rate / (1 - beta1**steps))
    return OptimizerState(params, exp_avg, exp_avg_sq, steps)


@dataclass(frozen=True)
class Skips:
    """Skipped updates so far. Part of a task's training state, so that a resumed run decides like an uninterrupted one."""

    updates: int = 0
    """Skipped updates since version 0."""
    versions: tuple[int, ...] = ()
    """Start versions of the steps with a skipped update, ascending: those within the window that ends at the latest."""

    def after(self, version: int, skipped: int) -> "Skips":
        """State after the step from `version`, which skipped `skipped` updates."""
        if not skipped:
            return self
        recent = tuple(earlier for earlier in self.versions if earlier > version - WINDOW_STEPS)
        return Skips(self.updates + skipped, (*recent, version))

    def objection(self) -> str | None:
        """Why the step of the latest skip fails its task; None if the limits allow it."""
        if len(self.versions) > MAX_IN_A_ROW and self.versions[-1] - self.versions[-1 - MAX_IN_A_ROW] == MAX_IN_A_ROW:
            return f"updates of the {MAX_IN_A_ROW} steps before were skipped, too, and no more may be in a row"
        if len(self.versions) > MAX_IN_WINDOW:
            return f"updates of {len(self.versions)} of the last {WINDOW_STEPS} steps were skipped, and at most {MAX_IN_WINDOW} may be"
        return None
