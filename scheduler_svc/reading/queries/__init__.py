"""SQL that only reads, for asks: every function takes the tenant whose rows it may see; None stands for all.

statuses.py  statuses of tasks
listing.py   which tasks are on a page, in which order
progress.py  steps, evaluations and versions of a task, and its spec
events.py    stored events
usage.py     tokens and stored bytes
reports.py   dead letters, adapters, live environments
"""
