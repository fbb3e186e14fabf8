"""Times between work of a pool, as observed: from when none of its executors has any until one has. Pure but for what it remembers.

Which members of open groups are with their environments is not known here, and asking for them costs a query over all members. What counts
for a decision is when the pool has work again, and that can be observed.
"""

from collections import deque
from dataclasses import dataclass, field

from scheduler_svc.decisions.accelerators import prediction
from scheduler_svc.decisions.accelerators.prediction import Latencies, OpenStep
from scheduler_svc.decisions.accelerators.state import Quantiles

NEWEST = 64
"""Newest gaps of a pool that count."""
MAX_GAP_S = 600.0
"""Longer ones are pauses between tasks, not gaps of a task."""
POOL = "pool"


@dataclass
class _Pool:
    idle_since_s: float | None = None
    lasted_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=NEWEST))
    latencies: Latencies | None = None


class Gaps:
    """Of the pools of one accelerator."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def observe(self, pool: str, now_s: float, *, has_work: bool) -> None:
        """Whether any executor of the pool has work now."""
        one = self._pools.setdefault(pool, _Pool())
        if not has_work:
            one.idle_since_s = now_s if one.idle_since_s is None else one.idle_since_s
        elif one.idle_since_s is not None:
            lasted_s, one.idle_since_s = now_s - one.idle_since_s, None
            if 0 <= lasted_s <= MAX_GAP_S:
                one.lasted_s.append(lasted_s)
                one.latencies = None

    def expected(self, pool: str, now_s: float) -> Quantiles | None:
        """Time until the pool has work; None while it has, and before the first gap was observed."""
        one = self._pools.get(pool)
        if one is None or one.idle_since_s is None or not one.lasted_s:
            return None
        if one.latencies is None:
            one.latencies = Latencies.of(list(one.lasted_s))
        return prediction.gap(now_s, [OpenStep(POOL, (one.idle_since_s,))], {POOL: one.latencies})
