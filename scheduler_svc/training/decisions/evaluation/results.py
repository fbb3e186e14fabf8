"""Results of an evaluation by one protocol, and what they say about the task's progress. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from common.evaluation import Difference, Estimate, is_binary, mean_reward, paired_difference, share
from common.spec import Protocol


@dataclass(frozen=True)
class Attempt:
    """Outcome of one member."""

    reward: float | None
    """None when the attempt failed, which says nothing about the policy."""
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
    """Prompt → mean reward of its scored attempts; without prompts that have none."""
    is_binary: bool
    """Whether every reward is 0 or 1."""
    failed_share: float
    """Share of the attempts that failed."""
    response_length: float | None
    truncated_share: float | None


@dataclass(frozen=True)
class BestSoFar:
    """Progress by the evaluations so far, in the order in which they finished."""

    best_version: int
    """The latest version with a gain over the best before it."""
    without_gain: int
    """Evaluations since then."""


def result_of(attempts_by_prompt: Mapping[int, Sequence[Attempt]], protocol: Protocol) -> Result:
    """Result of an evaluation. `attempts_by_prompt`: attempts that ended; missing ones count as failed."""
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
    """Paired difference of two versions' results by one protocol; None where no prompt is scored in both."""
    prompts = sorted(result.by_prompt.keys() & before.by_prompt.keys())
    resolution = 1 / protocol.attempts if result.is_binary and before.is_binary else None
    pairs = [[found.by_prompt[prompt] for prompt in prompts] for found in (before, result)]
    return paired_difference(*pairs, resolution=resolution)


def standing_after(standing: BestSoFar | None, version: int, gain: Difference | None, *, by_mean: bool) -> BestSoFar:
    """Progress with the evaluation of `version`. `gain`: its difference to the best version; None, or without an interval, says nothing."""
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
