"""Shared accelerators: whose slice is next, what became of it, and who pays. Only with accelerators in the pools file.

leader.py     the one replica that decides, at each change of an executor and when a decision ends
demands.py    executors and their work, as the decisions want them
reports.py    the newest report of each executor
orphans.py    executors that are awake without a slice
orders.py     the transactions of a decision: a slice with its orders, or its end
answers.py    what an executor's answer changes
booking.py    who pays for a slice that has ended
holds.py      what operators have ordered, and moves that they have measured
clocks.py     clocks of pools, also in the bucket `pools`
epochs.py     epochs of grants, which never go back
row_cache.py  rows, measured moves, and tenants' time, kept between decisions
deployed.py   accelerators and executors of the pools file
retention.py  slices that are kept no longer
decisions/    pure functions · queries/  SQL · handlers/  jobs, answers and questions

PostgreSQL has all that lasts; a leader that begins knows it from there, and the rest from the next report of each executor. Orders go
through the outbox. Every transaction locks the accelerator's row first, so that a slice ends once, and no two are open.
"""
