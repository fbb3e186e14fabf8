"""Accelerators that several pools share: the words, and what executors and the scheduler agree on (docs/pools.md).

types.py        functions, tiers, states and policies
trace.py        executors, their moves and steps of tasks, in files
parkable.py     what a sampler or trainer does with its state: the seam to leases
"""

# pyright: reportUnusedImport=false
from common.accelerators.parkable import Load, NoMemory, Parkable, StateMismatch, WorkDone
from common.accelerators.types import ExecutorState, Function, Policy, Tier, executor_name, off_device
