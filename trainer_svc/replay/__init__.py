"""Replay: recorded steps, recomputed. `python -m trainer_svc.replay` reads events and blobs of a running stack and writes nothing.

steps.py  a task's state from its checkpoint, or recomputed from an earlier one; recorded steps, compared with what was stored
"""
