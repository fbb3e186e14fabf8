"""What keeps loops running, and what tests it.

backoff.py       delays between attempts
periodic.py      periodic work of one runner
cancellation.py  cancellations that a library has lost
crashpoints.py   places at which a test kills the process
"""
