"""Concurrency primitives of this service, independent of environments. They own no task beyond their callers'.

single_flight.py  LRU cache with one construction per key
lru_cache.py      synchronous LRU cache
completion.py     results in batches, as they become ready
"""
