"""The gateway's own routes, one family per module.

tasks.py       submission, listing, state and control of tasks
records.py     events, steps, evaluations, usage and failures of a task; events and failures of all tasks
versions.py    versions of a task's adapter, and their files
deployment.py  health of the gateway; pools, environments, replicas; usage, invoices, prices, budgets and the audit log
door.py        asks and jobs as the SDK sends them
aliases.py, webhooks.py  aliases and webhooks of a tenant
files.py       files of rows
inference.py, fine_tuning.py  OpenAI's
"""
