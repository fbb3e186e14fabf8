"""What runs in the next engine step: served requests, and as many rollouts as leave them their latency goals.

Dual slack (ROSE, arXiv 2605.06534): until its first token a request has the time to its deadline; afterwards each token that came early
saves time for later steps. A step may take the least of these, divided by the margin of the step time model.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import NamedTuple

from rollout_svc.coserving.step_time import StepTime

AIMED = 0.9
"""Fraction of each goal planned for; the rest is for a token's way to its client."""
PROMPTS_PLANNED = 8
"""Maximum prompts of rollouts that enter in one step beside requests with goals."""
PROMPTS_SEEN = 32
"""Maximum waiting rollouts among which they are sought, and that enter in one step without requests with goals."""
LEFT = 0.5
"""Fraction of its time to the first token that rollouts' prompts leave a request that comes during their step."""
LONGEST_GAP = 4.0
"""Maximum time between two tokens of a request, as a multiple of its goal for the mean, however much time it has saved."""
CATCH_UP = 1.01
"""Time that a request behind its goal leaves for a step, as a multiple of the step without rollouts: none of them fits."""
SHARE_S = 10.0
SHARE_STEPS = 64
"""Rollouts' steps that count as given before the first one, so that a burst after a pause is not interrupted at once."""


@dataclass(frozen=True)
class Stream:
    """A served request after its first token. Times in seconds."""

    first_s: float
    last_s: float
    """Times of its first and its latest token."""
    tokens: int
    """Tokens that it has or that steps under way compute."""
    left: int
    """Maximum tokens that follow; at least 1."""
    tpot_s: float
    """Its goal."""


class Due(NamedTuple):
    """Times of a request's next token: planned, and the latest one with which it meets its goal."""

    aimed_s: float
    latest_s: float

    def by_s(self, begins_s: float, step_s: float) -> float:
        """Time by which a step must have ended.

        A request that misses the planned time, but not the latest one, takes all it can get: as soon as a step can end. One that misses
        both is lost. `begins_s`: when the step begins. `step_s`: its duration without rollouts.
        """
        return begins_s + CATCH_UP * step_s if self.aimed_s < begins_s + step_s <= self.latest_s else self.aimed_s

    def sooner(self, by_s: float) -> "Due":
        """Both times earlier: of a token that comes that much later than the step ends."""
        return Due(self.aimed_s - by_s, self.latest_s - by_s)


def next_due(stream: Stream, decode_s: float) -> Due:
    """Of its next token: it is in time if the stream can be back at its goal by its last token.

    `decode_s`: duration of later steps, without rollouts.
    """
    tpot_s = AIMED * stream.tpot_s
    aimed_s = min(stream.first_s + stream.tokens * tpot_s, stream.last_s + LONGEST_GAP * tpot_s)
    last_due_s = stream.first_s + (stream.tokens + stream.left - 1) * stream.tpot_s
    return Due(aimed_s, last_due_s - (stream.left - 1) * decode_s)


def prompts_at_once(
    slack_s: float, decodes: int, prompts: Sequence[int], times: StepTime, *, left_s: float = inf, spare_s: float = 0.0
) -> int:
    """Number of served prompts to compute in one step.

    To compute them one after the other delays the later ones little, and all at once would be one gap for every stream. So a further one
    enters only within the streams' slack, and the first one waits for streams that would miss their goals by it, while it can.
    `prompts`: tokens of each, first due first. `left_s`: until a stream misses its goal. `spare_s`: until the first prompt's token is due.
    """
    tokens = 0
    for count, prompt in enumerate(prompts):
        tokens += prompt
        took_s = times.expected_s(decodes, tokens) * times.margin
        may_wait = count or spare_s > took_s + times.expected_s(decodes, 0) * times.margin
        if may_wait and took_s > (slack_s if count else left_s):
            return count
    return len(prompts)


def prompts_entering(
    running: Sequence[Due], waiting: Sequence[Due], begins_s: float, step_s: float, decodes: int, prompts: Sequence[int], times: StepTime
) -> int:
    """`prompts_at_once` beside the streams. `running`, `waiting`: of served requests; `prompts`: tokens of those that wait, in order.

    `begins_s`, `step_s`: as in `Due.by_s`, without these prompts.
    """
    slack_s = min((due.by_s(begins_s, step_s) - begins_s for due in running), default=inf)
    left_s = min((due.latest_s - begins_s for due in running if due.latest_s >= begins_s + step_s), default=inf)
    spare_s = waiting[0].aimed_s - begins_s if waiting else 0.0
    return prompts_at_once(slack_s, decodes, prompts, times, left_s=left_s, spare_s=spare_s)


class Share:
    """Fraction of rollouts' steps that they got in about the last `SHARE_S` seconds."""

    def __init__(self) -> None:
        self._ran = self._wanted = float(SHARE_STEPS)
        self._at_s = 0.0

    def add(self, ran: int, wanted: int, now_s: float) -> None:
        """Count a step. `wanted`: rollouts that could run in it, `ran`: that did."""
        kept = exp(min(0.0, self._at_s - now_s) / SHARE_S)
        self._ran = SHARE_STEPS + (self._ran - SHARE_STEPS) * kept + ran
        self._wanted = SHARE_STEPS + (self._wanted - SHARE_STEPS) * kept + wanted
        self._at_s = now_s

    @property
    def value(self) -> float:
        return self._ran / self._wanted


@dataclass(frozen=True)
class Certain:
    """What served requests compute in the step."""

    dues_s: Sequence[float]
    """Times by which the step must have ended, one for each request with goals."""
    decodes: int
    prefill_tokens: int
    under_way_s: float
    """Seconds until steps under way will have ended."""


@dataclass(frozen=True)
class Wanted:
    """What rollouts would compute in the step."""

    running: int
    """Rollouts that would decode one token each, in order."""
    prompts: Sequence[int]
    """Tokens of each waiting prompt that no cache has, in order."""


@dataclass(frozen=True)
class Plan:
    running: int
    """Rollouts that decode: the first."""
    prompts: int
    """Prompts that are computed: the first. 0 while a rollout is held."""


def decide(now_s: float, certain: Certain, wanted: Wanted, times: StepTime, *, guaranteed: bool) -> Plan:
    """Choose the most rollouts, then the most of their prompts, that keep all served requests within their goals.

    A request that would be late even without rollouts holds none back. `guaranteed`: training has less than its share, so that all running
    rollouts get this step, and the first prompt.
    """
    begins_s = now_s + certain.under_way_s
    alone_s = times.expected_s(certain.decodes, certain.prefill_tokens)
    slack_s = min((due - begins_s for due in certain.dues_s if due - begins_s >= alone_s), default=inf)

    def fits(rollouts: int, tokens: int) -> bool:
        return times.expected_s(certain.decodes + rollouts, certain.prefill_tokens + tokens) * times.margin <= slack_s

    running = wanted.running if guaranteed else bisect_left(range(wanted.running), True, key=lambda before: not fits(before + 1, 0))
    if running < wanted.running:
        return Plan(running, 0)
    tokens = 0
    for count, prompt in enumerate(wanted.prompts):
        tokens += prompt
        if not fits(running, tokens):
            return Plan(running, max(count, int(guaranteed)))
    return Plan(running, len(wanted.prompts))
