"""Processor time of one decision: 64 pools with two executors each, 1,000 tasks with ready work."""

import time
from random import Random
from typing import Any

from bench.harness import report
from bench.plex.workloads import SAMPLER_BYTES, TRAINER_BYTES
from common.accelerators import Function, Tier
from scheduler_svc.decisions.accelerators.moves import Moves, piece_s
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
        self.holding = Holding(_name(0, Function.GENERATE), 20.0, 1.0, None, True, 20.0, 1.0)

    def demands(self) -> list[Demand]:
        """Expected work of all that is ready; the holder has none."""
        holder = (0, Function.GENERATE)
        return [self._demand(key, 0 if key == holder else ready) for key, ready in self.ready.items()]

    def decide(self, demands: list[Demand]) -> object:
        return next_slice(55.0, self.holding, demands, self.moves, RULES)

    def _demand(self, key: tuple[int, Function], ready: int) -> Demand:
        pool, function = key
        size = SAMPLER_BYTES if function is Function.GENERATE else TRAINER_BYTES
        tier = Tier.DEVICE if pool == 0 else Tier.HOST
        since, work_s, claims = None, 0.0, ()
        if ready:
            since, work_s = self.ready_s[key], piece_s(self.piece_s[key], function) * ready
            claims = tuple(Claim(f"tenant-{one}", 1.0, self.virtual_s[one], self.virtual_s[one]) for one in self.tenants[key])
        return Demand(_name(*key), f"pool-{pool}", function, tier, size, size, Tier.DISK, since, 0.0, work_s, claims)


def _name(pool: int, function: Function) -> str:
    return f"{'rollout' if function is Function.GENERATE else 'trainer'}-pool-{pool}"


def run(*, small: bool) -> dict[str, Any]:
    moments = [Moment(seed) for seed in range(4)]
    deciding_ms: list[float] = []
    for repeat in range(SMALL_REPEATS if small else REPEATS):
        moment = moments[repeat % len(moments)]
        demands = moment.demands()
        began = time.thread_time()
        moment.decide(demands)
        deciding_ms.append(1000 * (time.thread_time() - began))
    return {
        "pools": POOLS,
        "executors": 2 * POOLS,
        "tasks": TASKS,
        "tenants": TENANTS,
        "repeats": len(deciding_ms),
        "decision_ms": report.spread(deciding_ms),
        "aim_ms": AIM_MS,
    }
