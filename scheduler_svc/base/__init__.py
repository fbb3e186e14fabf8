"""Base of all subjects: PostgreSQL, the outbox, the audit, and the handlers' context.

A state change is one statement guarded by the state that it leaves. Rows are locked in one order, so that transactions
cannot deadlock: tasks by id, then tenants by id. Groups, members and steps are changed only under their task's lock.

database.py           connections, transactions, advisory locks; version of the schema
transaction.py        a transaction with its outbox
tables/               the schema
views.py              its public views
states.py             states of tasks, groups, trajectories and steps
rights.py             rights of PostgreSQL's roles
roles.py              creates these roles
sql.py                precompiled statements
deleted.py            deleted tasks: their ids and consumption
webhook_deliveries.py events to deliver to webhooks
audit.py              audit rows; downloads that are already recorded
context.py            HandlerContext: dependencies of every handler
scheduling_policy.py  asynchronous, or a baseline for measurements
samples.py            attempts that steps keep
metrics.py            Prometheus metrics
"""
