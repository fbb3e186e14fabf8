"""Queries on shared accelerators. Times are milliseconds of NATS's clock since 1970.

standing.py    executors with their newest slices, and tasks and tenants with work, which the leader decides by
executors.py   accelerators and executors: what the pools file has, answers, faults, operators' holds, measured moves
slices.py      the life of a slice, from its order to its booking
"""
