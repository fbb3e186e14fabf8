"""Training state of a task: in memory, as a checkpoint, and as a record of its steps.

resident.py        a task in memory: adapter vector, optimizer moments, version
optimizer.py       AdamW on one vector; skipped updates, and when they fail the task
checkpoint.py      writes a resident as a blob, and reads it
step_recording.py  a record of each step for replay, and the lineage from which a version is recomputed
"""
