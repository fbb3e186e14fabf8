"""What every subject stands on: PostgreSQL, the outbox, the audit, and what handlers are given.

database.py           connections, transactions, advisory locks; version of the schema
transaction.py        a transaction with its outbox
tables/               the schema · views.py its public views
states.py             states of tasks, groups, trajectories and steps
rights.py             which role of PostgreSQL may do what · roles.py makes them
sql.py                statements that are compiled once
queries/              outbox, deleted tasks, deliveries of webhooks
audit.py              who has done what; downloads that are recorded already
context.py            HandlerContext: what every handler is given
scheduling_policy.py  asynchronous, or one of the baselines for measurements
samples.py            attempts that steps keep · metrics.py
"""
