"""Sampling time of a step, expected step times of jobs on one accelerator, and whether sharing it pays. Pure.

A job visits the accelerator one or more times a step, and is away in between. Visits of all jobs queue for it: a closed queueing network
of one server, solved by approximate mean value analysis (Schweitzer, 1979) with these rules of a shared accelerator:
    residual   a visit that meets a running one waits for half of it on average, as if durations hardly varied
    switch     a visit pays the switch to its pool if the previous visit was of another pool. Jobs visit in random order, as often as their
               steps require; the accelerator is left after between one and all of the pool's queued visits, on average half of them
    capacity   visits take at most all of the accelerator's time: beyond that, all wait longer by the same amount
Jobs that have ended leave their time to the others (`ends_s`), so pools whose jobs end at different times share only part of the time.
No constant here is fitted to simulations or runs.
Trajectories of a step run concurrently: while one is in its environment, another is sampled. So neither the longest trajectory's time in
its environment nor the rest of the step tells how long an accelerator is needed. Single turns are not stored: all trajectories of a step
are assumed to begin together, with turns of equal length and equal times between them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

ITERATIONS = 60
"""Maximum iterations of the fixed-point computation of step times."""
TOLERANCE = 1e-4
"""Relative change of a step's time below which the iteration has converged."""
RESIDUAL = 0.5
"""Expected remaining fraction of an operation that another job's visit meets: one half if durations hardly vary."""
PERIODS = 128
"""Maximum number of intervals for which step times are computed; jobs that begin or end within one interval are treated as simultaneous."""


@dataclass(frozen=True)
class Profile:
    """A task's mean step for placement: time on and off the accelerator, and memory."""

    job: str
    pool: str
    busy_s: float
    """Accelerator seconds per step: sampling, training and scoring."""
    away_s: float
    """Seconds per step off the accelerator: environments, or samplers of its own."""
    steps: int = 1
    """Remaining steps."""
    device_bytes: int = 0
    """Bytes that the job's pool needs on the device."""
    host_bytes: int = 0
    """Bytes that the job's pool needs in host memory while parked."""
    visits: float = 1.0
    """Visits to the accelerator per step, each for an equal part of `busy_s`."""

    @property
    def busy_share(self) -> float:
        """Busy fraction of an exclusive accelerator: 1 minus PlexRL's bubble ratio."""
        whole = self.busy_s + self.away_s
        return self.busy_s / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class Worth:
    """Effect of sharing one accelerator, compared with running the pools alone on it, one after another."""

    saved_share: float
    """Fraction of accelerator-seconds saved; negative if sharing costs more than it saves."""
    slowdown: float
    """Mean factor by which tasks take longer."""

    @property
    def is_worth_it(self) -> bool:
        return self.saved_share > 0


def worth(profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> Worth:
    """Expected gain of sharing. `switch_s`: switch seconds that a visit of each pool pays after another pool's visit.

    `saved_share` is positive if sharing pays, and 0 without profiles.
    """
    if not profiles:
        return Worth(0.0, 1.0)
    alone: dict[str, float] = {}
    one_after_another_s = 0.0
    for pool in sorted({one.pool for one in profiles}):
        own = ends_s([one for one in profiles if one.pool == pool], {})
        one_after_another_s += max(own.values())
        alone |= own
    shared = ends_s(profiles, switch_s)
    slowdown = sum(shared[job] / alone[job] if alone[job] else 1.0 for job in shared) / len(shared)
    return Worth(1 - max(shared.values()) / one_after_another_s if one_after_another_s else 0.0, slowdown)


def ends_s(profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> dict[str, float]:
    """Expected end of each job, in seconds after all are submitted together. `switch_s`: as in `worth`.

    First visits queue in the order of the jobs' names, so equal jobs also end one after another.
    """
    left: dict[str, float] = {}
    begin_s: dict[str, float] = {}
    queued_s = 0.0
    ordered = sorted(profiles, key=lambda one: one.job)
    for one in ordered:
        left[one.job], begin_s[one.job] = float(one.steps), queued_s
        queued_s += one.busy_s / one.visits
    grain_s = max((one.steps * (one.busy_s + one.away_s) for one in ordered), default=0.0) / PERIODS if len(ordered) > PERIODS // 2 else 0.0
    found: dict[str, float] = {}
    now_s = 0.0
    while left:
        active = [one for one in ordered if one.job in left and begin_s[one.job] <= now_s]
        next_s = min((begin_s[job] for job in left if begin_s[job] > now_s), default=float("inf"))
        if not active:
            now_s = next_s
            continue
        takes_s = {one.job: seconds for one, seconds in zip(active, step_times(active, switch_s), strict=True)}
        until_s = max(now_s + grain_s, min(next_s, *(now_s + left[job] * seconds for job, seconds in takes_s.items())))
        for job, seconds in takes_s.items():
            end_s = now_s + left[job] * seconds
            if end_s <= until_s:
                found[job] = end_s
                del left[job]
            else:
                left[job] -= (until_s - now_s) / seconds
        now_s = until_s
    return found


def step_times(profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> list[float]:
    """Expected step seconds of each job, all on one accelerator, in the order of `profiles`. `switch_s`: as in `worth`."""
    if len(profiles) == 1:
        return [one.busy_s + one.away_s for one in profiles]
    away = [one.away_s / one.visits for one in profiles]
    residence = [one.busy_s / one.visits for one in profiles]
    demands = list(residence)
    for _ in range(ITERATIONS):
        cycles = [gone + stays for gone, stays in zip(away, residence, strict=True)]
        rates = [1 / max(1e-9, cycle) for cycle in cycles]
        queued = [rate * stays for rate, stays in zip(rates, residence, strict=True)]
        switches = _switches_s(profiles, rates, queued, switch_s)
        demands = [one.busy_s / one.visits + switch for one, switch in zip(profiles, switches, strict=True)]
        running = [min(1.0, rate * demand) for rate, demand in zip(rates, demands, strict=True)]
        waits = [(max(0.0, held - runs) + RESIDUAL * runs) * demand for held, runs, demand in zip(queued, running, demands, strict=True)]
        whole = sum(waits)
        before, residence = (
            residence,
            [(old + demand + whole - own) / 2 for old, demand, own in zip(residence, demands, waits, strict=True)],
        )
        if all(abs(new - old) <= TOLERANCE * cycle for new, old, cycle in zip(residence, before, cycles, strict=True)):
            break
    cycles = [gone + stays for gone, stays in zip(away, residence, strict=True)]
    longer_s = _beyond_capacity_s(cycles, demands)
    return [one.visits * (cycle + longer_s) for one, cycle in zip(profiles, cycles, strict=True)]


def _switches_s(profiles: Sequence[Profile], rates: Sequence[float], queued: Sequence[float], switch_s: Mapping[str, float]) -> list[float]:
    """Expected switch seconds per visit of each job. `rates`: visits per second; `queued`: mean number of the job's visits at the
    accelerator."""
    of_pool = _by_pool(profiles, rates)
    gathered = _by_pool(profiles, queued)
    every = sum(of_pool.values())
    found: list[float] = []
    for one, rate in zip(profiles, rates, strict=True):
        others, all_but_own = every - of_pool[one.pool], every - rate
        # Visits of other jobs since the job's last one; if fewer than one, the job itself was often the last visitor.
        chance = others / max(rate, all_but_own)
        found.append(switch_s.get(one.pool, 0.0) * chance / ((1 + max(1.0, gathered[one.pool])) / 2))
    return found


def _beyond_capacity_s(cycles: Sequence[float], demands: Sequence[float]) -> float:
    """Seconds added to each visit's cycle so that all visits together take at most all of the accelerator's time."""

    def use(longer_s: float) -> float:
        return sum(demand / max(1e-9, cycle + longer_s) for cycle, demand in zip(cycles, demands, strict=True))

    low, high = 0.0, sum(demands)
    if use(low) <= 1:
        return low
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if use(middle) > 1 else (low, middle)
    return high


def _by_pool(profiles: Sequence[Profile], values: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one, value in zip(profiles, values, strict=True):
        found[one.pool] = found.get(one.pool, 0.0) + value
    return found


MAX_TURNS = 128
"""Maximum number of turns simulated; beyond it, trajectories are sampled evenly from the shortest to the longest."""
HALVINGS = 10
"""Bisection steps in the search for the turn length."""


@dataclass(frozen=True)
class Trajectory:
    turns: int
    away_s: float
    """Seconds in the environment."""
    took_s: float
    """Seconds from admission to score."""


@dataclass(frozen=True)
class Occupancy:
    generate_s: float
    """Seconds in which at least one trajectory is being sampled."""
    environment_s: float
    """Seconds in which no trajectory is being sampled."""
    visits: int
    """Number of times that sampling begins after a gap."""


def occupancy(trajectories: Sequence[Trajectory], generate_s: float | None = None) -> Occupancy:
    """Occupancy of the accelerator by a step's trajectories, as if their pool had it exclusively.

    `generate_s`: measured seconds in which at least one trajectory was sampled, to which the turn length is fitted; needed if trajectories
    also waited for other pools. None: the turns of a trajectory take the part of its `took_s` not spent in the environment.
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
    count = max(2, MAX_TURNS // max(1, max(one.turns for one in trajectories)))
    if len(trajectories) <= count:
        return trajectories
    ordered = sorted(trajectories, key=lambda one: (one.away_s, one.took_s))
    return [ordered[number * (len(ordered) - 1) // (count - 1)] for number in range(count)]


def _placed(trajectories: Sequence[tuple[Trajectory, float]]) -> Occupancy:
    """Occupancy by trajectories, each paired with the length of its turns in seconds."""
    span_s = max(max(1, one.turns) * turn_s + one.away_s for one, turn_s in trajectories)
    generate_s, visits, until_s = 0.0, 0, -1.0
    for begin_s, end_s in sorted(part for one, turn_s in trajectories for part in _turns(one, turn_s)):
        visits += begin_s > until_s
        generate_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return Occupancy(generate_s, max(0.0, span_s - generate_s), visits)


def _turns(one: Trajectory, turn_s: float) -> Iterator[tuple[float, float]]:
    """Start and end of each turn, in seconds."""
    turns = max(1, one.turns)
    for number in range(turns):
        begin_s = number * (turn_s + one.away_s / turns)
        yield begin_s, begin_s + turn_s
