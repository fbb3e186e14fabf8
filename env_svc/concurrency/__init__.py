"""Asyncio helpers of this service that know nothing of environments.

fair_queue.py     which task's call the next free worker takes
single_flight.py  what is expensive to make is made once for all who wait, and cached
lru_cache.py      a mapping that keeps what was used last
completion.py     results in batches, as they become ready
"""
