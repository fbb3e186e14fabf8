"""Home queues, on a replica's side: the messages it takes in a pool with several named replicas (docs/pools.md).

Each such replica has a queue of its own, for keys whose home it is, besides the pool's queue, which all of them read.

    reading.py  decides when a replica takes from another's queue, from the ages of messages there and the replicas' reports
    queues.py   reads the pool's queue, its own, and those that it takes from
"""

# pyright: reportUnusedImport=false
from common.homes.queues import Member, Queues
from common.homes.reading import AWAKE, BEGUN, OWN_QUEUE, Ages
