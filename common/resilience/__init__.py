"""Retries, event-loop scheduling and process supervision, and their test hooks.

backoff.py       delays between attempts
event_loop.py    turns for long work, one at a time; background tasks; cancellations that a library loses
guardian.py      process that kills this one if it gives no sign of life
crashpoints.py   places at which a test kills the process
"""
