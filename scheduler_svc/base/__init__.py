"""What every subject stands on: PostgreSQL, the outbox, the audit, and what handlers are given.

database.py           connections, transactions, and advisory locks
transaction.py        a transaction with its outbox
tables/               the schema · views.py its public views · revision.py its version
states.py             states of tasks, groups, trajectories and steps
rights/               roles of PostgreSQL, and which may do what
sql/                  statements that are compiled once
queries/              outbox, replicas, deleted tasks, deliveries of webhooks
audit.py              who has done what
context.py            HandlerContext: what every handler is given
scheduling_policy.py  asynchronous, or one of the baselines for measurements
downloads.py          downloads that are in the audit already · samples.py attempts that steps keep · metrics.py
"""
