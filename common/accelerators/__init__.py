"""Accelerators that several pools share: the words, and what executors and the scheduler agree on (docs/pools.md).

executors.py    functions, tiers, states and policies; what a sampler or trainer does with its state: the seam to leases
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
