"""What every subject stands on: PostgreSQL, the outbox, the audit, and what handlers are given.

A state change is one statement guarded by the state that it leaves. Rows are locked in one order, so that transactions
cannot deadlock: tasks by id, then tenants by id. Groups, members and steps are changed only under their task's lock.

database.py           connections, transactions, advisory locks; version of the schema
transaction.py        a transaction with its outbox
tables/               the schema · views.py its public views
states.py             states of tasks, groups, trajectories and steps
rights.py             which role of PostgreSQL may do what · roles.py makes them
sql.py                statements that are compiled once
deleted.py            deleted tasks: their ids and what they consumed · webhook_deliveries.py events that webhooks wait for
audit.py              who has done what; downloads that are recorded already
context.py            HandlerContext: what every handler is given
scheduling_policy.py  asynchronous, or one of the baselines for measurements
samples.py            attempts that steps keep · metrics.py
"""
