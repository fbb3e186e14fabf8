"""Latency goals of served requests: deadlines for the engine, and whether sent tokens met them. No I/O."""

from collections.abc import Callable

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


class Watch:
    """Judges one attempt as its tokens are sent. It counts at most one outcome: the first miss when it happens, or `met` at the end."""

    def __init__(
        self, goals: RequestGoals | None = None, count: Callable[[Outcome], None] = lambda _: None, *, resumes: bool = False
    ) -> None:
        """`goals`: None if the pool has none, and nothing is counted. `resumes`: an earlier attempt was lost after its first token, so its
        client has seen a gap."""
        self.goals = goals
        self.is_cold = False
        """Whether the attempt's version was not loaded when its place was free."""
        self._count = count
        self._resumes = resumes
        self._is_judged = False
        self._first_s: float | None = None
        self._last_s = 0.0
        self._later = 0
        """Tokens after those sent first."""

    def sent(self, tokens: int, monotonic_s: float, *, ends: bool) -> None:
        """Tokens were sent; `ends`: they were the last."""
        if self.goals is None or self._is_judged:
            return
        if self._first_s is None:
            self._first_s = self._last_s = monotonic_s
            if self._resumes:
                self._judge("next")
            self._judge_first(self.goals, monotonic_s)
        else:
            self._later += tokens
        is_slow = ends and monotonic_s - self._first_s > self._later * self.goals.tpot_s
        if is_slow or monotonic_s - self._last_s > MAX_GAP * self.goals.tpot_s:
            self._judge("next")
        elif ends:
            self._judge("met")
        self._last_s = monotonic_s

    def left(self, monotonic_s: float) -> None:
        """The attempt ends without its last token: it was overdue, or its client has gone."""
        if self.goals is not None and self._first_s is None:
            self._judge_first(self.goals, monotonic_s)

    def _judge_first(self, goals: RequestGoals, monotonic_s: float) -> None:
        if monotonic_s > goals.first_due_s:
            self._judge("cold" if self.is_cold else "first")

    def _judge(self, outcome: Outcome) -> None:
        if not self._is_judged:
            self._is_judged = True
            self._count(outcome)
