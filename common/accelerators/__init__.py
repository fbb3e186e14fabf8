"""Accelerators that several pools share: the words, and what executors and the scheduler agree on (docs/pools.md).

words.py     functions, tiers, states and policies
"""

# pyright: reportUnusedImport=false
from common.accelerators.words import ExecutorState, Function, Policy, Tier, executor_name
