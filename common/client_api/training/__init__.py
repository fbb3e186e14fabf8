"""A client's operations on tasks.

jobs.py       submissions, and jobs about an existing task
following.py  events without loss or repetition
download.py   adapters, and bytes stored
progress.py   steps, evaluations, versions and dead letters of a task
"""
