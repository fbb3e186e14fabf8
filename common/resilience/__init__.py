"""What keeps loops running, and what tests it.

backoff.py       delays between attempts
turns.py         turns of the event loop for what takes long, one at a time
task_set.py      tasks beside their caller
cancellation.py  cancellations that a library loses
guardian.py      process that ends this one when it gives no sign of life
crashpoints.py   places at which a test kills the process
"""
