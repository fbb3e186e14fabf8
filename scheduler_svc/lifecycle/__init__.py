"""How tasks, groups and evaluations begin and end, whichever handler decides it.

warm_start.py   where a task's version 0 comes from
evaluations.py  evaluations, from plan to result
endings.py      how tasks and groups end, and what is refunded
task_events.py  events and the status that users read
"""
