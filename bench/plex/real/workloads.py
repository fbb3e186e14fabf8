"""Pools and tasks of real runs."""

from dataclasses import dataclass
from typing import Any

from common.spec import TaskSpec, parse_spec

RANK = 8


@dataclass(frozen=True)
class PoolLoad:
    """A pool and its tasks, all alike but for their seeds."""

    base: str
    """Of `bases.NAMES`; also the pool's name."""
    steps: int
    tool_s: float
    """Mean of a tool's answer, uniform from 0.5 to 1.5 times that."""
    tasks: int = 1
    turns: int = 2
    max_tokens: int = 12
    groups: int = 1
    size: int = 4
    kv_cache_gib: float = 0.25


@dataclass(frozen=True)
class Workload:
    name: str
    pools: tuple[PoolLoad, ...]
    memory_gib: float
    """Budget of the accelerator: one pool fits, two do not."""
    rounds: int = 1
    """Runs on one stack, one after another: its start takes as long as a run."""


TWO = Workload("two", (PoolLoad("middle", 10, tool_s=2.2, size=8), PoolLoad("large", 4, tool_s=5.8, size=8)), memory_gib=1.5, rounds=3)
"""Tools that leave each pool alone idle for about three quarters of its time; both pools last as long."""
CUT = Workload("tiny-cut", (PoolLoad("small", 2, tool_s=1.0, kv_cache_gib=0.1), PoolLoad("middle", 2, tool_s=1.0)), memory_gib=0.8)
ONE = Workload("one", (PoolLoad("large", 4, tool_s=1.0, tasks=4, groups=2, size=8, kv_cache_gib=1.0),), memory_gib=16)
ONE_CUT = Workload("one-small", (PoolLoad("middle", 2, tool_s=0.5),), memory_gib=0.8)
"""A pool whose engine and trainer share a device, at once or in turns."""
WORKLOADS = {one.name: one for one in (TWO, CUT, ONE, ONE_CUT)}


def task_specs(load: PoolLoad, steps: int | None = None) -> list[TaskSpec]:
    """The pool's tasks, each of a tenant of its own. `steps`: instead of the pool's own."""
    return [parse_spec(_task(load, steps or load.steps, number)) for number in range(load.tasks)]


def _task(load: PoolLoad, steps: int, number: int) -> dict[str, Any]:
    options = {"reward": "vowels", "turns": load.turns, "latency": "uniform", "latency_s": load.tool_s, "spread": 0.5}
    return {
        "name": f"{load.base}-{number}",
        "tenant": f"{load.base}-{number}",
        "pool": load.base,
        "steps": steps,
        "seed": number,
        "environment": {"name": "synthetic", "options": options},
        "sampling": {"max_tokens": load.max_tokens},
        "limits": {"max_prompt_tokens": 128, "max_turns": load.turns, "max_reply_tokens": 64},
        "algorithm": {"group_size": load.size, "groups_per_step": load.groups, "max_staleness": 0},
        "lora": {"rank": RANK, "alpha": 2 * RANK},
        "optimizer": {"learning_rate": 1e-4},
    }
