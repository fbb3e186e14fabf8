"""Replay: recorded steps, recomputed. `python -m trainer_svc.replay` reads events and blobs of a running stack and writes nothing.

restoring.py  a task's state from its checkpoint, or recomputed from an earlier one and the recorded steps after it
steps.py      recorded steps, recomputed and compared with what was stored
"""
