"""Displays of tasks.

a task's progress    test_progress.py
tables at any width  test_tables.py
points in trackers   test_trackers.py
"""
