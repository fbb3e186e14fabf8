"""Shared accelerators: which executor gets the next time slice, how slices end, and who pays. Used only with accelerators in the pools
file.

leader.py     the one replica that decides, at each change of an executor and when a decision expires
snapshot.py   rows and reports of an accelerator at one moment, as input of the decisions
conditions.py the condition of a snapshot, from a table
acts.py       the action for each condition
reports.py    the newest report of each executor
orders.py     transactions of a decision: a slice with its orders, or its end
answers.py    effects of an executor's answer
booking.py    who pays for a slice that has ended
clocks.py     clocks of pools, also in the bucket `pools`
row_cache.py  rows, measured moves, and tenants' time, cached between decisions
pool_jobs.py  audited jobs of operators: park, drain, wake, release, measure
asked.py      answers to questions: executors, slices, moves, traces, parked pools
deployed.py   accelerators and executors of the pools file
decisions/    pure functions
queries/      SQL

All durable state is in PostgreSQL; a new leader reads it there, and the rest from the next report of each executor. Orders go
through the outbox. Every transaction locks the accelerator's row first, so that a slice ends once, and no two are open.
"""
