"""Latency goals of served requests: deadlines for the engine, and whether sent tokens met them. No I/O."""

from dataclasses import dataclass

from common.goals import Outcome
from common.messages import ServeRequest
from common.pools import Goals
from rollout_svc.engine.stream import RequestGoals

MAX_GAP = 4
"""Maximum gap between two tokens, in multiples of the goal for their mean."""


def goals_of(request: ServeRequest, goals: Goals, now_s: float, monotonic_s: float) -> RequestGoals:
    """Deadlines of an attempt on this host's monotonic clock, which does not jump. `now_s`: NATS's clock at `monotonic_s`.

    An attempt that continues after tokens of an earlier one is a new request for the engine.
    """
    has_waited = request.asked_s and not request.sampled
    waited_s = max(0.0, now_s - request.asked_s) if has_waited else 0.0
    return RequestGoals(monotonic_s - waited_s + goals.ttft_s, goals.tpot_s)


@dataclass
class Watch:
    """Latency of one attempt, from its tokens as they are sent. Times on `time.monotonic()`."""

    goals: RequestGoals | None
    """None: the pool has none."""
    resumes: bool = False
    """Whether an earlier attempt was lost after its first token, so that its client has seen a gap."""
    is_cold: bool = False
    """Whether the attempt's version was not loaded when its place was free."""
    _first_s: float | None = None
    _last_s: float = 0.0
    _gap_s: float = 0.0
    _later: int = 0
    """Tokens after those sent first."""

    def sent(self, tokens: int, now_s: float) -> None:
        if self._first_s is None:
            self._first_s = now_s
        else:
            self._later += tokens
            self._gap_s = max(self._gap_s, now_s - self._last_s)
        self._last_s = now_s

    def outcome(self, now_s: float, *, has_ended: bool) -> Outcome | None:
        """The first miss; else `met`, or None if the request was cut short in time. `has_ended`: the last token was sent."""
        if self.goals is None:
            return None
        if self.resumes:
            return "next"
        if (now_s if self._first_s is None else self._first_s) > self.goals.first_due_s:
            return "cold" if self.is_cold else "first"
        is_slow = has_ended and self._first_s is not None and self._last_s - self._first_s > self._later * self.goals.tpot_s
        if is_slow or self._gap_s > MAX_GAP * self.goals.tpot_s:
            return "next"
        return "met" if has_ended else None
