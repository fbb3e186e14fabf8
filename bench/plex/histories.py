"""Random histories of one shared accelerator under the policy `ratio`: what must hold in each, and shares by weight.

A history draws pools, tasks, durations with heavy tails, costs of switches, budgets, samplers' batches and `max_wait_s`. In each one

- every task ends;
- no executor with ready work waits longer than `max_wait_s` and, of each executor, one operation and one switch;
- whole milliseconds booked to tasks sum to the slices, and slices to the time held;
- the same history again gives the same numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from bench.plex.tasks import Run, simulate
from bench.plex.workloads import Cell, cell_rules, cell_trace, lognormal, pool_executors
from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task, Trace
from scheduler_svc.accelerators.decisions.state import MemoryBudget, Rules

HISTORIES, SMALL_HISTORIES = 10_000, 5
REPEATED = 50
"""One history in so many is played twice."""
WEIGHTS = ((1.0, 1.0), (1.0, 3.0), (1.0, 1.0, 1.0), (1.0, 3.0, 3.0))
SHARES_S, SMALL_SHARES_S = 4000.0, 1000.0
"""Simulated seconds over which shares by weight are counted, while all tenants have work."""
EPSILON_S = 1e-6


@dataclass(frozen=True)
class History:
    trace: Trace
    rules: Rules
    seed: int


def random_history(seed: int) -> History:
    random = Random(f"history {seed}")
    pools = [f"p{number}" for number in range(random.randint(2, 5))]
    operation_s = random.choice([0.2, 2.0, 20.0])
    executors: list[Executor] = []
    for pool in pools:
        switch_s = operation_s * 10 ** random.uniform(-2, 0.3)
        places = random.choice([1, 4])
        sampler, trainer = pool_executors(pool, switch_s, random)
        gain = tuple(1 + random.uniform(0.3, 0.9) * more for more in range(places))
        executors += [replace(sampler, places=places, gain=gain, deepest=random.choice([Tier.HOST, Tier.DISK])), trainer]
    tasks = [_random_task(number, pools, operation_s, random) for number in range(random.randint(len(pools), 10))]
    rules = Rules(
        MemoryBudget(random.choice([60, 100, 150, 200]), random.choice([100, 200, 1000])),
        max_wait_s=operation_s * random.choice([0, 1, 5, 20]),
        residency=random.choice([0.0, 2.0, 4.0]),
    )
    return History(Trace(tuple(executors), tuple(tasks)), rules, seed)


def _random_task(number: int, pools: Sequence[str], operation_s: float, random: Random) -> Task:
    environment_s = operation_s * random.choice([0.0, 1.0, 10.0])

    def phases() -> tuple[Phase, ...]:
        turns: list[Phase] = []
        for _ in range(random.choice([1, 1, 2])):
            turns.append((Function.GENERATE, lognormal(operation_s, 1.0, random)))
            turns += [(ENVIRONMENT, lognormal(environment_s, 1.5, random))] if environment_s else []
        turns += [(Function.SCORE, lognormal(operation_s / 4, 0.5, random))] if random.random() < 0.3 else []
        return (*turns, (Function.TRAIN, lognormal(operation_s, 0.5, random)))

    pool = pools[number] if number < len(pools) else random.choice(pools)
    tenant = f"t{random.randrange(3)}"
    steps = tuple(phases() for _ in range(random.randint(3, 6)))
    return Task(f"task{number}", tenant, pool, random.uniform(0, 5 * operation_s), steps, {"t0": 1.0, "t1": 1.0, "t2": 3.0}[tenant])


def violations(history: History, run: Run) -> list[str]:
    """Sentences about what did not hold."""
    counts, accounts = run.accelerator.counts, run.accelerator.accounts
    found: list[str] = []
    allowed_s = history.rules.max_wait_s + counts.bound_s
    if (longest_s := max(counts.executor_waits_s)) > allowed_s + EPSILON_S:
        found.append(f"an executor waited for {longest_s:.3f} s; {allowed_s:.3f} s are allowed")
    if sum(accounts.booked_ms.values()) != accounts.slices_ms:
        found.append(f"{sum(accounts.booked_ms.values())} ms are booked of {accounts.slices_ms} ms")
    if abs(accounts.slices_ms / 1000 - counts.held_s) > 0.001:
        found.append(f"slices are {accounts.slices_ms} ms, and {counts.held_s:.4f} s were held")
    if any(len(one.step_s) != len(one.task.steps) for one in run.tasks):
        found.append("a task has not done all its steps")
    return found


def play(seed: int) -> tuple[list[str], Run]:
    history = random_history(seed)
    run = simulate(history.trace, history.rules, seed)
    found = violations(history, run)
    if seed % REPEATED == 0:
        again = simulate(history.trace, history.rules, seed)
        if (again.makespan_s, again.accelerator.accounts.booked_ms) != (run.makespan_s, run.accelerator.accounts.booked_ms):
            found.append("played again it came out otherwise")
    return [f"history {seed}: {one}" for one in found], run


def shares(weights: tuple[float, ...], seconds: float, seed: int = 0) -> dict[str, Any]:
    """Booked shares of the accelerator's time by tenant, against their weights, while each always has work."""
    cell = Cell(pools=len(weights), tasks=6, idle=0.3, switch=0.1, weights=weights)
    trace = cell_trace(cell, steps=round(seconds), seed=seed)
    run = simulate(trace, cell_rules(), seed, until_s=seconds)
    booked = run.accelerator.accounts.booked_ms
    whole = sum(booked.values())
    found = [sum(ms for task, ms in booked.items() if task.startswith(f"task-{number}-")) / whole for number in range(len(weights))]
    wanted = [weight / sum(weights) for weight in weights]
    error = max(abs(share / want - 1) for share, want in zip(found, wanted, strict=True))
    return {"weights": list(weights), "shares": [round(share, 4) for share in found], "error": round(error, 4)}


def run(*, small: bool) -> dict[str, Any]:
    count = SMALL_HISTORIES if small else HISTORIES
    broken: list[str] = []
    used: list[float] = []
    strict = switches = frozen = 0
    for seed in range(count):
        found, one = play(seed)
        broken += found
        counts = one.accelerator.counts
        history = random_history(seed)
        allowed_s = history.rules.max_wait_s + counts.bound_s
        used.append(max(counts.executor_waits_s) / allowed_s)
        strictly_s = history.rules.max_wait_s + max(counts.longest_operation_s.values()) + sum(counts.longest_switch_s.values())
        strict += max(counts.executor_waits_s) <= strictly_s + EPSILON_S
        switches += counts.switches
        frozen += counts.frozen
    return {
        "histories": count,
        "violations": len(broken),
        "first_violations": broken[:10],
        "switches": switches,
        "frozen": frozen,
        "longest_wait_of_bound": round(max(used), 3),
        "within_one_operation_in_all": round(strict / count, 4),
        "shares": [shares(weights, SMALL_SHARES_S if small else SHARES_S) for weights in WEIGHTS],
    }
