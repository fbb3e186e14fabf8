"""Processor time of one decision, and of the predictions before it: 64 pools with two executors each, 1,000 tasks with ready work."""

import time
from random import Random
from typing import Any

from bench.harness import report
from bench.plex.workloads import SAMPLER_BYTES, TRAINER_BYTES
from common.accelerators import Function, Tier
from common.accelerators.away import AGES, TIMES, TaskAway
from scheduler_svc.decisions.accelerators.gaps import Gaps
from scheduler_svc.decisions.accelerators.moves import Moves
from scheduler_svc.decisions.accelerators.prediction import piece_s
from scheduler_svc.decisions.accelerators.slicing import next_slice
from scheduler_svc.decisions.accelerators.state import Budget, Claim, Demand, Holding, Quantiles, Rules

POOLS, TASKS, TENANTS = 64, 1000, 50
REPEATS, SMALL_REPEATS = 400, 5
AIM_MS = 2.0
RULES = Rules(Budget(SAMPLER_BYTES + TRAINER_BYTES, 10_000))


class Moment:
    """One accelerator with all pools, at a random moment."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        functions = (Function.GENERATE, Function.TRAIN)
        self.ready: dict[tuple[int, Function], int] = {(pool, function): 0 for pool in range(POOLS) for function in functions}
        self.tenants: dict[tuple[int, Function], set[int]] = {key: set() for key in self.ready}
        self.piece_s = {key: random.uniform(1, 10) for key in self.ready}
        for task in range(TASKS):
            key = (task % POOLS, random.choice(functions))
            self.ready[key] += 1
            self.tenants[key].add(task % TENANTS)
        self.virtual_s = [random.uniform(0, 100) for _ in range(TENANTS)]
        self.ready_s = {key: random.uniform(0, 50) for key in self.ready}
        self.moves = Moves({(_name(*key), Tier.HOST, Tier.DEVICE): Quantiles(random.uniform(0.1, 2), 2.0) for key in self.ready})
        self.gaps = Gaps(["pool-0"], ["pool-0"])
        self.gaps.observe("pool-0", 50.0, has_work=False)
        self.away = [_away(f"task-{number}", random) for number in range(TASKS // POOLS)]
        self.holding = Holding(_name(0, Function.GENERATE), 20.0, 1.0, None, True, 20.0, 1.0, 55.0)

    def demands(self) -> list[Demand]:
        """Expected work of all that is ready, and the gap of the holder, which has none."""
        holder = (0, Function.GENERATE)
        return [self._demand(key, ready, is_idle=key == holder) for key, ready in self.ready.items()]

    def decide(self, demands: list[Demand]) -> object:
        return next_slice(55.0, self.holding, demands, self.moves, RULES)

    def _demand(self, key: tuple[int, Function], ready: int, *, is_idle: bool) -> Demand:
        pool, function = key
        size = SAMPLER_BYTES if function is Function.GENERATE else TRAINER_BYTES
        tier = Tier.DEVICE if pool == 0 else Tier.HOST
        if is_idle or not ready:
            since, work_s, claims, pool_gap = None, 0.0, (), self._gap() if is_idle else None
        else:
            since, work_s, pool_gap = self.ready_s[key], piece_s(self.piece_s[key], function) * ready, None
            claims = tuple(Claim(f"tenant-{one}", 1.0, self.virtual_s[one], self.virtual_s[one]) for one in self.tenants[key])
        return Demand(_name(*key), f"pool-{pool}", function, tier, size, size, Tier.DISK, since, 0.0, work_s, claims, pool_gap)

    def _gap(self) -> Quantiles | None:
        """After a report of its sampler."""
        self.gaps.members("pool-0", "sampler", 55.0, self.away)
        return self.gaps.expected("pool-0", 55.0)


def _away(task: str, random: Random) -> TaskAway:
    """A task of which as much is reported as may be."""
    left_ms = tuple((random.randrange(50_000), random.randrange(101)) for _ in range(AGES))
    times_ms = [tuple(sorted(random.randrange(5_000, 60_000) for _ in range(TIMES))) for _ in range(2)]
    return TaskAway(task, 64, left_ms, min(age for age, _ in left_ms), random.randrange(50_000), *times_ms)


def _name(pool: int, function: Function) -> str:
    return f"{'rollout' if function is Function.GENERATE else 'trainer'}-pool-{pool}"


def run(*, small: bool) -> dict[str, Any]:
    moments = [Moment(seed) for seed in range(4)]
    predicting_ms: list[float] = []
    deciding_ms: list[float] = []
    for repeat in range(SMALL_REPEATS if small else REPEATS):
        moment = moments[repeat % len(moments)]
        began = time.thread_time()
        demands = moment.demands()
        predicted = time.thread_time()
        moment.decide(demands)
        predicting_ms.append(1000 * (predicted - began))
        deciding_ms.append(1000 * (time.thread_time() - predicted))
    return {
        "pools": POOLS,
        "executors": 2 * POOLS,
        "tasks": TASKS,
        "tenants": TENANTS,
        "repeats": len(deciding_ms),
        "decision_ms": report.spread(deciding_ms),
        "predictions_ms": report.spread(predicting_ms),
        "aim_ms": AIM_MS,
    }
