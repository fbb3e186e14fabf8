"""Counts of served requests by latency goal: met, or the cause of the first miss."""

from collections import Counter, defaultdict
from typing import Literal

import prometheus_client
import structlog

from common.periodic import run_forever

LOG_S = 60.0
"""Seconds between log lines while goals are missed."""
Outcome = Literal["met", "first", "next", "cold", "refused"]
"""`first`: the first token was late; `cold`: it was late, and the version had to be loaded; `next`: later tokens were too slow, or one
came after a gap; `refused`: the gateway refused the request, as it would have waited too long."""

GOALS = prometheus_client.Counter(
    "marlaas_goals_total", "Requests to versions, by latency goal: met, or the cause of the miss", ["pool", "outcome"]
)

log = structlog.get_logger()


class GoalTally:
    """Outcomes of requests in this process, since its start. `run` must be running."""

    def __init__(self) -> None:
        self.busy: dict[str, float] = defaultdict(float)
        """Counts for the replica's report, over all pools."""
        self._unlogged: dict[str, Counter[str]] = defaultdict(Counter)

    def count(self, pool: str, outcome: Outcome) -> None:
        GOALS.labels(pool, outcome).inc()
        self.busy[f"goals_{outcome}"] += 1
        self._unlogged[pool][outcome] += 1

    async def run(self) -> None:
        """Log each minute in which goals were missed, until cancelled."""
        await run_forever(self._log, LOG_S, "goals_unknown", pauses_first=True)

    async def _log(self) -> None:
        latest, self._unlogged = self._unlogged, defaultdict(Counter)
        for pool, outcomes in latest.items():
            if outcomes.keys() - {"met"}:
                log.warning("goals_missed", pool=pool, seconds=LOG_S, **outcomes)
