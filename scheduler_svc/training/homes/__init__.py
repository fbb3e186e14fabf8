"""Homes: each key of a pool with several replicas keeps to one of them, where what it needs is warm (docs/pools.md).

A key is of a kind: a task (its adapter at a sampler, its training state at a trainer), or a group or prefix (its KV cache). A replica has a
name of its own in its pool, and a queue of that name beside the pool's.

    choice.py  home for (kind, key) among the replicas of a pool: when it is chosen, and when it changes. Pure
    rows.py    homes of tasks, and which replicas can serve, in PostgreSQL
    keeper.py  looks periodically, and writes the homes that were chosen
"""
