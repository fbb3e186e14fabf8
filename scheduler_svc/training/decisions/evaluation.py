"""Evaluations: which versions answer which held-out prompts, their results by protocol, and the version that `@best` names. Pure.

The prompts of a protocol are the same at every version, and never trained on: rows from FIRST_ROW, with seeds of their own. Group numbers
start at FIRST_EVALUATION_GROUP, so that messages about evaluation and training groups cannot be confused.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from common.evaluation import Difference, Estimate, is_binary, mean_reward, paired_difference, share
from common.messages.prompts import FIRST_EVALUATION_GROUP
from common.spec import MAX_GROUPS, Evaluation, Protocol, TaskSpec

RETRY_INCREMENT = MAX_GROUPS
"""Increment of a group's number at each retry: messages that carry the old number are ignored."""
MAX_RETRIES = 3
FIRST_ROW = 2**31
"""First row of held-out prompts; training counts rows from 0 and stays below."""


@dataclass(frozen=True)
class PlannedGroups:
    """Groups of one protocol's evaluation, in the order of its prompts."""

    protocol: Protocol
    numbers: range


def is_group(number: int) -> bool:
    """Whether the group with this number belongs to an evaluation."""
    return number >= FIRST_EVALUATION_GROUP


def may_be_retried(number: int) -> bool:
    return (number - FIRST_EVALUATION_GROUP) // RETRY_INCREMENT < MAX_RETRIES


def is_due(spec: TaskSpec, version: int) -> bool:
    every = spec.evaluation.every
    return every > 0 and (version % every == 0 or version == spec.steps)


def groups_to_plan(evaluation: Evaluation, evaluated_before: int) -> list[PlannedGroups]:
    """Groups of one version's evaluation, by protocol. `evaluated_before`: versions of the task that were evaluated."""
    first = FIRST_EVALUATION_GROUP + evaluated_before * evaluation.prompts_in_all
    found: list[PlannedGroups] = []
    for protocol in evaluation.protocols:
        found.append(PlannedGroups(protocol, range(first, first + protocol.prompts)))
        first += protocol.prompts
    return found


def row_of(prompt: int) -> int:
    return FIRST_ROW + prompt


def prompt_of(row: int) -> int:
    return row - FIRST_ROW


def prompt_seed(protocol: Protocol, prompt: int) -> int:
    """56-bit seed, derived like a training seed but under another name; protocols with equal seeds use the same prompts."""
    digest = hashlib.sha256(f"evaluation:{protocol.seed}:{prompt}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


@dataclass(frozen=True)
class Attempt:
    """Outcome of one member."""

    reward: float | None
    """None if the attempt failed for infrastructure reasons, which carry no information about the policy."""
    sampled_tokens: int
    truncated: bool


@dataclass(frozen=True)
class Result:
    """Result of one version's evaluation by one protocol."""

    reward: Estimate | None
    """Mean over the scored attempts; None when every attempt failed."""
    pass_at: dict[int, float]
    """k → probability that at least one of k attempts at a prompt succeeds, for k = 1, 2, 4, … and all attempts."""
    pass_at_1: Estimate | None
    by_prompt: dict[int, float]
    """Prompt → mean reward of its scored attempts; omits prompts without a scored attempt."""
    is_binary: bool
    """Whether every reward is 0 or 1."""
    failed_share: float
    """Share of the attempts that failed."""
    response_length: float | None
    truncated_share: float | None


@dataclass(frozen=True)
class BestSoFar:
    """Best version and evaluations since, over the finished evaluations in the order in which they finished."""

    best_version: int
    """Latest version with a gain over the best version before it."""
    without_gain: int
    """Evaluations since `best_version` without a gain."""


def result_of(attempts_by_prompt: Mapping[int, Sequence[Attempt]], protocol: Protocol) -> Result:
    """Result of an evaluation. `attempts_by_prompt`: ended attempts; missing attempts count as failed."""
    scored = {prompt: [one for one in attempts if one.reward is not None] for prompt, attempts in attempts_by_prompt.items()}
    rewards = {prompt: [one.reward or 0.0 for one in attempts] for prompt, attempts in scored.items() if attempts}
    every = [one for attempts in scored.values() for one in attempts]
    passed = [[reward >= protocol.success for reward in each] for each in rewards.values()]
    return Result(
        reward=mean_reward([*rewards.values()]) if every else None,
        pass_at=_pass_at(passed, protocol.attempts),
        pass_at_1=share([fmean(each) for each in passed], [1] * len(passed), attempts=len(every)) if every else None,
        by_prompt={prompt: fmean(each) for prompt, each in rewards.items()},
        is_binary=is_binary([*rewards.values()]),
        failed_share=1 - len(every) / (protocol.prompts * protocol.attempts),
        response_length=fmean(one.sampled_tokens for one in every) if every else None,
        truncated_share=fmean(one.truncated for one in every) if every else None,
    )


def gain_of(result: Result, before: Result, protocol: Protocol) -> Difference | None:
    """Paired difference of two versions' results by one protocol; None if no prompt is scored in both."""
    prompts = sorted(result.by_prompt.keys() & before.by_prompt.keys())
    resolution = 1 / protocol.attempts if result.is_binary and before.is_binary else None
    pairs = [[found.by_prompt[prompt] for prompt in prompts] for found in (before, result)]
    return paired_difference(*pairs, resolution=resolution)


def standing_after(standing: BestSoFar | None, version: int, gain: Difference | None, *, by_mean: bool) -> BestSoFar:
    """`standing` updated with the evaluation of `version`.

    `gain`: difference to the best version. If it is None, or has no interval although the lower bound decides, `standing` is returned
    unchanged.
    """
    if standing is None:
        return BestSoFar(version, 0)
    shown = gain and (gain.mean if by_mean else gain.interval and gain.interval[0])
    if shown is None:
        return standing
    return BestSoFar(version, 0) if shown > 0 else BestSoFar(standing.best_version, standing.without_gain + 1)


def pass_at_k(attempts: int, passed: int, k: int) -> float:
    """Probability that k of the attempts, drawn without replacement, are not all failures: 1 − C(n−c, k) / C(n, k).

    Source: the unbiased estimator of Codex, arXiv 2107.03374, eq. 1.
    """
    return 1 - comb(attempts - passed, k) / comb(attempts, k)


def _pass_at(passed_by_prompt: Sequence[Sequence[bool]], attempts: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for k in sorted({1 << power for power in range(attempts.bit_length())} | {attempts}):
        enough = [passed for passed in passed_by_prompt if len(passed) >= k]
        if enough:
            found[k] = fmean(pass_at_k(len(passed), sum(passed), k) for passed in enough)
    return found


LATEST_STEPS = 5
"""Latest steps whose rewards are compared if no stored version is evaluated."""


@dataclass(frozen=True)
class Judged:
    """Evaluated result of a version."""

    version: int
    reward: float
    lower_bound: float | None
    """Lower bound of the mean's 95 % interval; None if too few prompts were scored."""


def best_version(
    judged: Sequence[Judged], rewards: Sequence[tuple[int, float]], stored: Collection[int], *, by_mean: bool = False
) -> int | None:
    """Best of the `stored` versions, the earlier one on ties. None if none is stored, or no stored version has a result.

    judged: evaluations by the deciding protocol. by_mean: whether the mean decides instead of the lower bound.
    rewards: (version, mean reward of the step that made it), by version; the last 5 count if no stored version is evaluated.
    """

    def worth(one: Judged) -> tuple[float, float, int]:
        bound = float("-inf") if one.lower_bound is None else one.lower_bound
        return (one.reward if by_mean else bound, one.reward, -one.version)

    if known := [one for one in judged if one.version in stored]:
        return max(known, key=worth).version
    latest = [(reward, -version) for version, reward in rewards[-LATEST_STEPS:] if version in stored]
    return -max(latest)[1] if latest else None
