"""What keeps loops running, and what tests it.

backoff.py       delays between attempts
event_loop.py    turns for what takes long, one at a time; tasks beside their caller; cancellations that a library loses
guardian.py      process that ends this one when it gives no sign of life
crashpoints.py   places at which a test kills the process
"""
