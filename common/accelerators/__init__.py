"""Accelerators shared by several pools: terms and types that executors and the scheduler agree on (docs/pools.md).

executors.py    functions, tiers, states and policies; `Parkable`, the interface between a sampler or trainer and the leases
memory.py       memory of this process, and of a GPU according to its driver
trace.py        executors, their moves and steps of tasks, in files
"""

# pyright: reportUnusedImport=false
from common.accelerators.executors import (
    ExecutorState,
    Function,
    Load,
    NoMemory,
    Parkable,
    Policy,
    StateMismatch,
    Tier,
    WorkDone,
    executor_name,
    off_device,
)
