"""Seconds of a step in which any of its trajectories is sampled, and in which none is. Pure.

Trajectories of a step run concurrently: while one is in its environment, another is sampled. So neither the longest trajectory's time with
its environment nor what is left of the step says how long an accelerator is needed. Single turns are not stored. Each trajectory is taken
to begin with the others, and to have turns, and times between them, that are as long as each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MOST_TURNS = 128
"""Maximum number of turns that are looked at; of more, those of so many trajectories, from the shortest to the longest."""
HALVINGS = 10
"""Of the range in which the length of a turn is sought."""


@dataclass(frozen=True)
class Trajectory:
    turns: int
    away_s: float
    """Seconds with its environment."""
    took_s: float
    """Seconds from its admission to its score."""


@dataclass(frozen=True)
class Occupancy:
    generate_s: float
    """Seconds in which at least one trajectory is sampled."""
    environment_s: float
    """Seconds in which none is."""
    visits: int
    """Times that sampling begins after a time without."""


def occupancy(trajectories: Sequence[Trajectory], generate_s: float | None = None) -> Occupancy:
    """Of a step's trajectories, as if its pool had the accelerator to itself.

    `generate_s`: measured seconds in which any was sampled, where trajectories also waited for other pools: then turns are as long as
    gives these. None: turns take what the environment leaves of `took_s`.
    """
    seen = _sample(trajectories)
    if not seen:
        return Occupancy(generate_s or 0.0, 0.0, 1)
    if generate_s is None:
        return _placed([(one, max(0.0, one.took_s - one.away_s) / max(1, one.turns)) for one in seen])
    low_s, high_s = 0.0, generate_s
    for _ in range(HALVINGS):
        turn_s = (low_s + high_s) / 2
        is_longer = _placed([(one, turn_s) for one in seen]).generate_s < generate_s
        low_s, high_s = (turn_s, high_s) if is_longer else (low_s, turn_s)
    found = _placed([(one, high_s) for one in seen])
    return Occupancy(generate_s, found.environment_s, found.visits)


def _sample(trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    if not trajectories:
        return ()
    count = max(2, MOST_TURNS // max(1, max(one.turns for one in trajectories)))
    if len(trajectories) <= count:
        return trajectories
    ordered = sorted(trajectories, key=lambda one: (one.away_s, one.took_s))
    return [ordered[number * (len(ordered) - 1) // (count - 1)] for number in range(count)]


def _placed(trajectories: Sequence[tuple[Trajectory, float]]) -> Occupancy:
    """`trajectories`: each with the seconds of one of its turns."""
    span_s = max(max(1, one.turns) * turn_s + one.away_s for one, turn_s in trajectories)
    generate_s, visits, until_s = 0.0, 0, -1.0
    for begin_s, end_s in sorted(part for one, turn_s in trajectories for part in _turns(one, turn_s)):
        visits += begin_s > until_s
        generate_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return Occupancy(generate_s, max(0.0, span_s - generate_s), visits)


def _turns(one: Trajectory, turn_s: float) -> Iterator[tuple[float, float]]:
    """Begin and end of each."""
    turns = max(1, one.turns)
    for number in range(turns):
        begin_s = number * (turn_s + one.away_s / turns)
        yield begin_s, begin_s + turn_s
