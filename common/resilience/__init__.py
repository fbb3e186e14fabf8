"""What keeps loops running, and what tests it.

backoff.py       delays between attempts
periodic.py      periodic work of one runner
turns.py         turns of the event loop for what takes long, one at a time
cancellation.py  cancellations that a library loses
guardian.py      process that ends this one when it gives no sign of life
crashpoints.py   places at which a test kills the process
"""
