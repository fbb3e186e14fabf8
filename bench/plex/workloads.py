"""Made-up traces: pools whose tasks sample, wait for their environments and train."""

import math
from dataclasses import dataclass
from random import Random

from common.accelerators import Function, Tier
from common.accelerators.trace import ENVIRONMENT, Executor, Phase, Task, Trace
from scheduler_svc.accelerators.decisions.state import MemoryBudget, Rules

GENERATE_S, TRAIN_S = 2.0, 1.0
"""Mean seconds of a step's sampling and of its training."""
OPERATION_S = (GENERATE_S + TRAIN_S) / 2
"""Mean operation, of which the cost of a switch is a share."""
SPREAD, ENVIRONMENT_SPREAD = 0.3, 0.6
"""Coefficients of variation of operations and of environment times."""
SAMPLER_BYTES, TRAINER_BYTES = 60, 40
"""Of a pool, in per cent of the device: one pool fits, two do not."""
BUDGET = MemoryBudget(SAMPLER_BYTES + TRAINER_BYTES, 10_000)
PAUSE_S = 0.005


@dataclass(frozen=True)
class Cell:
    """One accelerator, and the tasks on it."""

    pools: int
    tasks: int
    """Of each pool."""
    idle: float
    """Share of a task's time alone that is spent in its environment."""
    switch: float
    """Cost of changing from a pool to another, both executors of each, as a share of a mean operation."""
    weights: tuple[float, ...] = ()
    """Of the pools' tenants; 1 each unless given."""

    @property
    def switch_s(self) -> float:
        return self.switch * OPERATION_S


def cell_trace(cell: Cell, steps: int, seed: int) -> Trace:
    """A tenant for each pool. Durations are lognormal; tasks are submitted at random during the length of a step."""
    random = Random(f"{cell}{seed}")
    environment_s = cell.idle / (1 - cell.idle) * (GENERATE_S + TRAIN_S)
    executors: list[Executor] = []
    tasks: list[Task] = []
    for number in range(cell.pools):
        pool = f"pool-{number}"
        executors += pool_executors(pool, cell.switch_s, random)
        weight = cell.weights[number] if cell.weights else 1.0
        for each in range(cell.tasks):
            step = tuple(_step(environment_s, random) for _ in range(steps))
            submitted_s = random.uniform(0, GENERATE_S + environment_s + TRAIN_S)
            tasks.append(Task(f"task-{number}-{each}", f"tenant-{number}", pool, submitted_s, step, weight))
    return Trace(tuple(executors), tuple(tasks))


def _step(environment_s: float, random: Random) -> tuple[Phase, ...]:
    generate = (Function.GENERATE, lognormal(GENERATE_S, SPREAD, random))
    train = (Function.TRAIN, lognormal(TRAIN_S, SPREAD, random))
    return (generate, (ENVIRONMENT, lognormal(environment_s, ENVIRONMENT_SPREAD, random)), train)


def pool_executors(pool: str, switch_s: float, random: Random) -> list[Executor]:
    """Sampler and trainer of a pool. The four moves of a change from one pool to another take `switch_s` together, each ± a fifth."""

    def moves(there: float, back: float) -> dict[tuple[Tier, Tier], tuple[float, ...]]:
        found: dict[tuple[Tier, Tier], tuple[float, ...]] = {(Tier.DEVICE, Tier.DEVICE): (PAUSE_S,)}
        for between, share in (((Tier.DEVICE, Tier.HOST), there), ((Tier.HOST, Tier.DEVICE), back)):
            found[between] = tuple(share * switch_s * random.uniform(0.8, 1.2) for _ in range(9))
        return found

    sampler = Executor(f"rollout-{pool}", pool, (Function.GENERATE,), SAMPLER_BYTES, SAMPLER_BYTES, Tier.HOST, moves=moves(0.25, 0.35))
    trainer = Executor(
        f"trainer-{pool}", pool, (Function.TRAIN, Function.SCORE), TRAINER_BYTES, TRAINER_BYTES, Tier.HOST, moves=moves(0.15, 0.25)
    )
    return [sampler, trainer]


def lognormal(mean: float, variation: float, random: Random) -> float:
    """A draw with this mean and coefficient of variation."""
    variance = math.log(1 + variation**2)
    return mean * math.exp(random.gauss(-variance / 2, math.sqrt(variance)))


def cell_rules() -> Rules:
    return Rules(BUDGET)
