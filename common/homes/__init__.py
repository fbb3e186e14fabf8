"""A replica's side of homes: whose messages it takes, in a pool with several replicas that have names (docs/pools.md).

Each such replica has a queue of its own, for keys that have their home at it, beside the pool's queue, which all of them read.

    reading.py  when a replica takes from another's queue, since when messages wait there, and what replicas report of theirs
    queues.py   reads the pool's queue, its own, and those that it takes from
"""

# pyright: reportUnusedImport=false
from common.homes.queues import Member, Queues
from common.homes.reading import AWAKE, BEGUN, OWN_QUEUE, Ages
