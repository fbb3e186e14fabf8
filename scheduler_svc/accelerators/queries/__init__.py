"""Queries on shared accelerators. Times are Unix milliseconds of NATS's clock.

standing.py    executors with their newest slices, and tasks and tenants with work: the leader's inputs
executors.py   accelerators and executors: registration, answers, faults, operators' holds, measured moves
slices.py      the life of a slice, from its order to its booking
"""
