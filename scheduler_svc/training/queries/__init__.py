"""Queries on tasks and what they train.

tasks.py          rows, states and versions of tasks
candidates.py     tasks that admission chooses from
groups.py         groups and their attempts · members.py members, as they are settled · deadlines.py those that are overdue
steps.py          optimizer steps · announcements.py the trainer's announcements
versions.py       steps, evaluations and versions that are asked for
evaluations.py    evaluations
progress.py       progress of one task, and tasks without any
waiting.py        what one task waits for
dead_letters.py   dead letters · pool_times.py clocks of pools
"""
