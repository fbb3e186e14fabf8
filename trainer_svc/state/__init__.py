"""Training state of a task: in memory, as a checkpoint, and as a record of its steps.

resident.py        a task in memory: adapter vector, optimizer moments, version
optimizer.py       AdamW on one vector; updates that were skipped, and when they fail the task
checkpoint.py      a resident as a blob, and back
step_recording.py  a record of each step, from which it can be replayed, and the lineage that a version is recomputed from
"""
