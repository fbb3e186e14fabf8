"""Base of the scheduler's other packages: PostgreSQL, the outbox, the audit, and the handlers' context.

A state change is one SQL statement, with the previous state as a condition. Rows are locked in one order, so that transactions
cannot deadlock: tasks by id, then tenants by id. Groups, members and steps are changed only while their task's row is locked.

database.py           connections, transactions, advisory locks; version of the schema
transaction.py        a transaction with its outbox
tables/               the schema
views.py              the schema's public views
states.py             states of tasks, groups, trajectories and steps
rights.py             rights of PostgreSQL's roles
roles.py              creates these roles
sql.py                precompiled statements
deleted.py            deleted tasks: their ids and consumption
webhook_deliveries.py events to deliver to webhooks
audit.py              audit rows; downloads that are already recorded
context.py            HandlerContext: dependencies of every handler
scheduling_policy.py  how tasks are scheduled: asynchronously, or as in a baseline for measurements
samples.py            stored attempts of steps
metrics.py            Prometheus metrics
"""
