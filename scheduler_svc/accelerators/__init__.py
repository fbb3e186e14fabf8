"""Shared accelerators: whose slice is next, what became of it, and who pays. Only with accelerators in the pools file.

leader.py     the one replica that looks at each change of an executor and when a decision ends
snapshot.py   rows and reports of an accelerator at one moment, as the decisions want them
conditions.py what a snapshot shows: one condition of a table
acts.py       the decision for each condition
reports.py    the newest report of each executor
orders.py     the transactions of a decision: a slice with its orders, or its end
answers.py    what an executor's answer changes
booking.py    who pays for a slice that has ended
clocks.py     clocks of pools, also in the bucket `pools`
row_cache.py  rows, measured moves, and tenants' time, kept between decisions
pool_jobs.py  jobs of operators: park, drain, wake, release, measure
asked.py      questions: executors, slices, moves, traces, pools that wait
deployed.py   accelerators and executors of the pools file
decisions/    pure functions · queries/  SQL

PostgreSQL has all that lasts; a leader that begins knows it from there, and the rest from the next report of each executor. Orders go
through the outbox. Every transaction locks the accelerator's row first, so that a slice ends once, and no two are open.
"""
