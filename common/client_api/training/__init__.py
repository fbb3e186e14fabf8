"""What clients do with tasks.

jobs.py       submissions, and jobs about a task that there is
following.py  events without loss or repetition
download.py   adapters, and what is stored
progress.py   steps, evaluations, versions and dead letters of a task
"""
