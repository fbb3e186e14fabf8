"""An executor's side of leases: a sampler or trainer computes on a shared accelerator only while it may (docs/pools.md).

Consumes `leases.order`, and watches the buckets `leases` and `pools`. Produces `leases.done`, `leases.now` and the lease in the bucket.
Owns the files of locks in the accelerator's folder.

    executor.py        wiring: all of this for one process
    reconciler.py      the newest order, done step by step: a table of what is next
    moves.py           room on the device, and wakes and parks of a Parkable, which must end in time
    lease.py           the lease in NATS: taken, renewed, released, overdue
    locks.py           files whose locks say who computes, and who has how much on the device
    watchdog.py        thread that ends a process that does not do what was ordered
    history.py         durations of past moves, which limit future ones, and what was served since the last wake
    answers.py         what became of orders, sent until NATS has it
    reports.py         reports at each change, and what waits in the executor's queues
    clocks.py          clocks of pools, which stand while the pool's sampler is parked
    context.py         the executor's name, and what these work with
    memory.py          private memory of this process, and memory of a GPU
"""

# pyright: reportUnusedImport=false
from common.leases.clocks import PoolClocks
from common.leases.context import Identity
from common.leases.executor import DEVICE_SHARE, LeasedExecutor, Placed, budget_bytes, leased_executor, placed
from common.leases.locks import Holders, Locks, holders
from common.leases.memory import driver_memory
from common.leases.reports import Reading
