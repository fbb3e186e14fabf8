"""Replay: recomputes recorded steps. `python -m trainer_svc.replay` reads events and blobs of a running stack and writes nothing.

steps.py  restores a task's state from its checkpoint, or recomputes it from an earlier one; compares recorded steps with stored digests
"""
