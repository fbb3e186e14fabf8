"""Queries on tasks and what they train.

tasks.py          rows, states and versions of tasks
candidates.py     tasks that admission chooses from
groups.py         groups and their attempts · members.py members, as they are settled
deadlines.py      groups that are overdue, and clocks of pools
steps.py          optimizer steps
versions.py       steps, evaluations and versions that are asked for
evaluations.py    evaluations
progress.py       progress of one task, and tasks without any
"""
