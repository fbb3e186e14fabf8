"""Evaluation plan and results: a trained version answers held-out prompts, which are never trained on. Pure.

The prompts are the same at every version: rows from FIRST_ROW, with seeds of their own. Group numbers start at
FIRST_GROUP, so that messages about evaluation and training groups cannot be confused.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from common.spec import MAX_GROUPS, Evaluation, TaskSpec

FIRST_GROUP = 1_000_000_000
RETRY_INCREMENT = MAX_GROUPS
"""Increment of a group's number at each retry: messages that carry the old number are ignored."""
MAX_RETRIES = 3
FIRST_ROW = 2**31
"""First row of held-out prompts; training counts rows from 0 and stays below."""


@dataclass(frozen=True)
class Attempt:
    """Outcome of one member."""

    reward: float | None
    """None when the attempt failed, which says nothing about the policy."""
    sampled_tokens: int
    truncated: bool


@dataclass(frozen=True)
class Result:
    """Result of one version's evaluation."""

    reward: float | None
    """Mean over the scored attempts; None when every attempt failed."""
    pass_at: dict[int, float]
    """k → probability that at least one of k attempts at a prompt succeeds, for k = 1, 2, 4, … and all attempts."""
    prompts: int
    """Prompts with at least one scored attempt."""
    failed_share: float
    """Share of the attempts that failed."""
    response_length: float | None
    truncated_share: float | None


def is_group(number: int) -> bool:
    """Whether the group with this number belongs to an evaluation."""
    return number >= FIRST_GROUP


def may_be_retried(number: int) -> bool:
    return (number - FIRST_GROUP) // RETRY_INCREMENT < MAX_RETRIES


def is_due(spec: TaskSpec, version: int) -> bool:
    every = spec.evaluation.every
    return every > 0 and (version % every == 0 or version == spec.steps)


def first_group(spec: TaskSpec, evaluations_before: int) -> int:
    return FIRST_GROUP + evaluations_before * spec.evaluation.prompts


def prompt_seed(spec: TaskSpec, prompt: int) -> int:
    """Seed of 56 bits, as in training, derived from another name."""
    digest = hashlib.sha256(f"evaluation:{spec.evaluation.seed}:{prompt}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def result_of(attempts_by_prompt: Sequence[Sequence[Attempt]], evaluation: Evaluation) -> Result:
    """Result of an evaluation. `attempts_by_prompt`: attempts that ended; missing ones count as failed."""
    scored = [[one for one in attempts if one.reward is not None] for attempts in attempts_by_prompt]
    every = [one for attempts in scored for one in attempts]
    rewards = [one.reward for one in every if one.reward is not None]
    return Result(
        reward=fmean(rewards) if rewards else None,
        pass_at=_pass_at(scored, evaluation),
        prompts=sum(map(bool, scored)),
        failed_share=1 - len(every) / (evaluation.prompts * evaluation.attempts),
        response_length=fmean(one.sampled_tokens for one in every) if every else None,
        truncated_share=fmean(one.truncated for one in every) if every else None,
    )


def pass_at_k(attempts: int, passed: int, k: int) -> float:
    """Probability that k of the attempts, drawn without replacement, are not all failures: 1 − C(n−c, k) / C(n, k).

    Source: the unbiased estimator of Codex, arXiv 2107.03374, eq. 1.
    """
    return 1 - comb(attempts - passed, k) / comb(attempts, k)


def _pass_at(scored: Sequence[Sequence[Attempt]], evaluation: Evaluation) -> dict[int, float]:
    found: dict[int, float] = {}
    for k in sorted({1 << power for power in range(evaluation.attempts.bit_length())} | {evaluation.attempts}):
        enough = [[(one.reward or 0.0) >= evaluation.success for one in attempts] for attempts in scored if len(attempts) >= k]
        if enough:
            found[k] = fmean(pass_at_k(len(passed), sum(passed), k) for passed in enough)
    return found
