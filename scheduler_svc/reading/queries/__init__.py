"""SQL that only reads, for asks: every function takes the tenant whose rows it may see; None stands for all.

statuses.py  statuses of tasks
listing.py   which tasks are on a page, in which order
timeline.py  times of steps
events.py    stored events
usage.py     tokens and stored bytes
reports.py   dead letters, adapters, live environments
"""
