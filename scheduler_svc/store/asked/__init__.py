"""SQL that only reads, for asks: every function takes the tenant whose rows it may see; None stands for all.

statuses.py  statuses of tasks
events.py    stored events
usage.py     tokens and stored bytes
reports.py   dead letters, adapters, live environments
"""
