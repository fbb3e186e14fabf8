"""Decisions about tasks as pure functions: no clock, no database, no NATS.

sharing/            who goes next, how much is in flight, and why a task waits
evaluation/         which versions are evaluated, and which is the best
endings/            why a task ends, what warns of it, and what is kept
batching.py         which groups make the next optimizer step
replica_support.py  what live replicas cannot do for a task
"""
