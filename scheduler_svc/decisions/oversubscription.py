"""How much more than its samplers decode at once a pool may have in flight, because much of it is with its environments. Pure.

A member counts as in flight from admission until it is scored, also while its tool works. Where tools take ten times as long
as sampling, a factor that is right for quick ones leaves the samplers idle nine tenths of the time. So it follows what they
report: while all that may be in flight is, and they had less to do than they could for a while, more is let in, a quarter at a
time; when they are full, less, because what waits for a sampler was admitted for an older version than it would be later.

More does not help where it is the environments that cannot keep up: groups then take ever longer. Nothing more is let in
while one has spent half of its time, and what was is taken back where one nears its deadline.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

LOOKS_S = 15.0
"""Between two changes: some reports of each replica, and time for what was let in to come to the samplers."""
IDLE, FULL = 0.75, 0.95
"""Of the sequences that the samplers decode at once: the most that they had in hand since the last change."""
IN_USE = 0.9
"""Of what may be in flight, is."""
LATE, TOO_LATE = 0.5, 0.75
"""Of the time until its deadline, that the oldest group has spent."""
MORE, LESS = 1.25, 0.9


@dataclass(frozen=True)
class PoolLoad:
    """Of one pool, at one moment."""

    sequences: int
    """That its samplers decode at once."""
    sampled: float
    """That they have in hand."""
    used: float
    """Share of what may be in flight that is; 0 when nothing is."""
    spent: float
    """Of its time, by the group that has spent most; 0 when none is open."""


@dataclass
class _Pool:
    factor: float
    since_s: float
    most_sampled: float = 0.0
    most_used: float = 0.0


class OversubscriptionController:
    """Factors by pool, between `least`, with which each begins, and `most`."""

    def __init__(self, least: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._most = max(least, most)
        self._clock = clock
        self._pools: dict[str, _Pool] = {}

    def factor(self, pool: str) -> float:
        return self._pools[pool].factor if pool in self._pools else self._least

    def look(self, pool: str, seen: PoolLoad) -> None:
        """To be called again and again."""
        state = self._pools.setdefault(pool, _Pool(self._least, self._clock()))
        if not seen.used or seen.spent >= TOO_LATE:
            self._pools[pool] = _Pool(self._least, self._clock())
            return
        state.most_sampled = max(state.most_sampled, seen.sampled)
        state.most_used = max(state.most_used, seen.used)
        if self._clock() - state.since_s < LOOKS_S:
            return
        if state.most_sampled >= FULL * seen.sequences:
            factor = max(self._least, state.factor * LESS)
        elif state.most_sampled < IDLE * seen.sequences and state.most_used >= IN_USE and seen.spent < LATE:
            factor = min(self._most, state.factor * MORE)
        else:
            factor = state.factor
        self._pools[pool] = _Pool(factor, self._clock())
