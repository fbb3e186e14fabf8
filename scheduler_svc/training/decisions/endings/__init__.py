"""Ends of tasks, and of what they have stored.

task_end.py       why a task ends before its last step
task_warnings.py  signs that a task runs and learns nothing
retention.py      which blobs of past versions are kept
"""
