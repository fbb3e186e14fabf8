"""Home queues: which queues a replica reads in a pool with several named replicas (docs/pools.md).

All these replicas read the pool's queue. In addition, each has a queue of its own, for tasks whose home it is.

    reading.py  decides when a replica takes from another's queue, from the ages of messages there and the replicas' reports
    queues.py   reads the pool's queue, its own, and those that it takes from
"""

# pyright: reportUnusedImport=false
from common.homes.queues import Member, Queues
from common.homes.reading import AWAKE, BEGUN, OWN_QUEUE, Ages
