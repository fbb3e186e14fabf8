"""Simulated executors, and their moves between tiers: how long each takes, and what is known of them by then."""

from collections import deque
from dataclasses import dataclass, field
from random import Random

from bench.plex.meters import Measures
from bench.plex.pieces import Operation
from common.accelerators import Tier
from common.accelerators.trace import Executor
from scheduler_svc.accelerators.decisions.state import Quantiles
from scheduler_svc.accelerators.decisions.tiers import NEWEST, Key, Moves, measured, piece_s, prior_s


@dataclass
class State:
    """One executor in the simulation."""

    table: Executor
    measures: Measures
    tier: Tier = Tier.HOST
    ready: deque[Operation] = field(default_factory=deque[Operation])
    parked_since_s: float = float("-inf")

    @property
    def ready_since_s(self) -> float | None:
        return self.ready[0].ready_s if self.ready else None

    def work_s(self, running: int) -> float:
        """Expected seconds of what is ready and of what runs, as the scheduler expects it from the executor's report."""
        return piece_s(self.measures.piece_s, self.table.functions[0]) * (len(self.ready) + running)

    @property
    def left(self) -> Quantiles:
        """Expected time until all that runs has ended."""
        left_s = self.measures.meter.left_s
        left_s = piece_s(self.measures.piece_s, self.table.functions[0]) if left_s is None else left_s
        return Quantiles(left_s, left_s)


class Moving:
    """Moves of one accelerator's executors. `known`: what the decisions are given, by the moves so far."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._durations: dict[Key, deque[float]] = {}
        self._quantiles: dict[Key, Quantiles] = {}
        self.known = Moves(self._quantiles)

    def calibrate(self, table: Executor) -> None:
        """Know an executor's moves before the first one."""
        for (from_tier, to_tier), durations in table.moves.items():
            key = (table.executor, from_tier, to_tier)
            self._durations[key] = deque(durations, maxlen=NEWEST)
            self._quantiles |= measured({key: durations})

    def move(self, state: State, to_tier: Tier) -> float:
        """Seconds of one move, drawn from those measured; without any, those that bytes suggest."""
        table, from_tier = state.table, state.tier
        durations = table.moves.get((from_tier, to_tier))
        seconds = self._random.choice(durations) if durations else prior_s(from_tier, to_tier, table.device_bytes, self.known.rates)
        key = (table.executor, from_tier, to_tier)
        known = self._durations.setdefault(key, deque(maxlen=NEWEST))
        known.append(seconds)
        if key not in self._quantiles or len(durations or ()) > 1:
            self._quantiles |= measured({key: known})
        state.tier = to_tier
        return seconds
