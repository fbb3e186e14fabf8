"""Expected step times of jobs on one accelerator, and whether sharing it is worth it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ITERATIONS = 60
"""Of the fixed point; times change by less than a thousandth after some twenty."""
RESIDUAL = 0.5
"""Expected rest of an operation that another job's meets, as a share of it: one half where their durations hardly vary."""


@dataclass(frozen=True)
class Profile:
    """A task as placement knows it: what a step of it takes, on and off the accelerator."""

    job: str
    pool: str
    busy_s: float
    """Seconds of the accelerator in a step: sampling, training and scoring."""
    away_s: float
    """Seconds of a step in which it needs no accelerator: environments, or samplers of its own."""
    steps: int = 1
    """Steps that are left."""
    device_bytes: int = 0
    """Bytes that its pool needs on the device."""
    host_bytes: int = 0
    """Bytes that its pool needs in host memory while parked."""

    @property
    def busy_share(self) -> float:
        """Share of its time in which it keeps an accelerator of its own busy; 1 less what PlexRL calls the bubble ratio."""
        whole = self.busy_s + self.away_s
        return self.busy_s / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class Worth:
    """What sharing one accelerator does, against each pool alone on it, one after another."""

    saved_share: float
    """Accelerator-seconds saved, as a share; negative where sharing costs more than it saves."""
    slowdown: float
    """Mean factor by which steps take longer."""

    @property
    def is_worth_it(self) -> bool:
        return self.saved_share > 0


def worth(profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> Worth:
    """Expected gain of sharing. `switch_s`: seconds of the switch to each pool from another.

    The sign says whether to share; without profiles there is nothing to gain.
    """
    if not profiles:
        return Worth(0.0, 1.0)
    alone: dict[str, float] = {}
    pools = sorted({one.pool for one in profiles})
    for pool in pools:
        own = [one for one in profiles if one.pool == pool]
        alone |= dict(zip((one.job for one in own), step_times(own, {}), strict=True))
    shared = dict(zip((one.job for one in profiles), step_times(profiles, switch_s), strict=True))
    one_after_another_s = sum(max(one.steps * alone[one.job] for one in profiles if one.pool == pool) for pool in pools)
    together_s = max(one.steps * shared[one.job] for one in profiles)
    slowdown = sum(shared[one.job] / alone[one.job] for one in profiles) / len(profiles)
    return Worth(1 - together_s / one_after_another_s, slowdown)


def step_times(profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> list[float]:
    """Expected seconds of a step of each job, all on one accelerator.

    A closed queueing network of one server, solved by approximate mean value analysis (Schweitzer, 1979; waiting for the rest of a running
    operation by its mean residual). A switch to a pool is paid by as many of its jobs as are at the accelerator.
    """
    costs = [_switch_per_visit_s(one, profiles, switch_s) for one in profiles]
    residence = [one.busy_s + cost for one, cost in zip(profiles, costs, strict=True)]
    demands = list(residence)
    for _ in range(ITERATIONS):
        rates = [1 / max(1e-9, one.away_s + stays) for one, stays in zip(profiles, residence, strict=True)]
        queued = [rate * stays for rate, stays in zip(rates, residence, strict=True)]
        gathered = _by_pool(profiles, queued)
        demands = [one.busy_s + cost / max(1.0, gathered[one.pool]) for one, cost in zip(profiles, costs, strict=True)]
        running = [min(1.0, rate * demand) for rate, demand in zip(rates, demands, strict=True)]
        waits = [(max(0.0, held - runs) + RESIDUAL * runs) * demand for held, runs, demand in zip(queued, running, demands, strict=True)]
        whole = sum(waits)
        residence = [(old + demand + whole - own) / 2 for old, demand, own in zip(residence, demands, waits, strict=True)]
    busiest = sum(demands) if len(profiles) > 1 else 0.0
    return [max(one.away_s + stays, busiest) for one, stays in zip(profiles, residence, strict=True)]


def _by_pool(profiles: Sequence[Profile], values: Sequence[float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one, value in zip(profiles, values, strict=True):
        found[one.pool] = found.get(one.pool, 0.0) + value
    return found


def _switch_per_visit_s(one: Profile, profiles: Sequence[Profile], switch_s: Mapping[str, float]) -> float:
    """Expected seconds of switches when a job comes to the accelerator: none where its pool was the last there.

    The chance of that, the square of the pool's share of all jobs, is that two operations in a
    row are its own; it was fitted to simulations.
    """
    share = sum(each.pool == one.pool for each in profiles) / len(profiles)
    return switch_s.get(one.pool, 0.0) * (1 - share**2)
