"""What clients do with tasks.

submission.py  submissions of tasks
control.py     jobs about a task that there is
following.py   events without loss or repetition
failures.py    dead letters
download.py    adapters, and what is stored
progress.py    steps, evaluations and versions of a task
"""
