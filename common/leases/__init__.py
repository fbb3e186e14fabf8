"""Leases, on an executor's side: a sampler or trainer computes on a shared accelerator only while permitted (docs/pools.md).

Consumes `leases.order`; watches the buckets `leases` and `pools`; reads `replicas` and `history`.
Produces `leases.done`, `leases.now` and the lease in the bucket. Owns the lock files in the accelerator's folder.

    executor.py        wiring: all of this for one process
    reconciler.py      carries out the newest order step by step, by a table of next steps
    moves.py           room on the device; wakes and parks of a Parkable, with time limits
    lease.py           the lease in NATS: taken, renewed, released, overdue
    locks.py           lock files: which executor computes, and how many bytes each has on the device
    watchdog.py        thread that ends a process that does not carry out an order in time
    history.py         durations of past moves, which limit future ones, and work done since the last wake
    answers.py         answers to orders, sent until NATS has stored them
    reports.py         reports at each change, and the backlog of the executor's queues
    clocks.py          clocks of pools, which stop while the pool's sampler is parked
    context.py         the executor's identity, and dependencies of these components
"""

# pyright: reportUnusedImport=false
from common.leases.clocks import PoolClocks
from common.leases.context import Identity
from common.leases.executor import LeasedExecutor, Placed, budget_bytes, leased_executor, placed
from common.leases.locks import Holders, Locks, holders
from common.leases.reports import Reading
