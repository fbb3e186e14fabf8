"""The gateway's own routes, a family each.

health.py      whether it lives and works
tasks.py       submission, listing, state and control of tasks
records.py     events, steps, evaluations, usage and failures of a task
versions.py    versions of its adapter, and their files
deployment.py  pools, environments, replicas, usage
billing.py     invoices, prices, budgets and the audit
"""
