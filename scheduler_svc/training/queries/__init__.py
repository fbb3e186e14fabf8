"""Queries on tasks, their groups, steps and versions.

tasks.py          rows, states and versions of tasks
candidates.py     candidate tasks for admission
groups.py         groups and their attempts
members.py        members, as they are settled
deadlines.py      overdue groups, and clocks of pools
steps.py          optimizer steps
versions.py       reads of steps, evaluations and versions for clients
evaluations.py    evaluations
progress.py       progress of one task, and stalled tasks
"""
