"""Queries on what a task trains.

tasks.py          rows, states and versions of tasks
groups.py         groups and their attempts
members.py        members, as they are settled
steps.py          optimizer steps
announcements.py  the trainer's announcements
evaluations.py    evaluations, their groups and members
progress.py       progress of one task, and tasks without any
"""
