"""Decisions about tasks as pure functions: no clock, no database, no NATS.

admission.py   which task opens the next groups in a pool, and how many
pool_load.py   clocks of pools, and how much work may be in flight
waiting.py     why a task waits, and the number that would have to change
batching.py    which groups make the next optimizer step
evaluation.py  which versions are evaluated, their results, and which is the best
endings.py     why a task ends early, and its warnings
retention.py   which blobs of past versions are kept
homes.py       which replica of its pool a key (task, group or prefix) is assigned to
"""
