"""An executor's side of homes: whose messages a sampler or trainer takes, in a pool that is on several shared accelerators (docs/pools.md).

Each executor of such a pool has a queue of its own, for tasks that have their home at it, beside the pool's queue, which all of them read.

    reading.py  when an executor takes from another's queue
    queues.py   reads the pool's queue, its own, and those that it takes from
"""

# pyright: reportUnusedImport=false
from common.homes.queues import Queues, queues_of
