"""Training state of a task: in memory, as a checkpoint, and as a record of its steps.

resident.py        a task in memory: adapter vector, optimizer moments, version
optimizer.py       AdamW on one vector
skips.py           updates that were skipped, and when they fail the task
checkpoint.py      a resident as a blob, and back
lineage.py         the checkpoint and batches that a version is recomputed from
step_recording.py  a record of each step, from which it can be replayed
"""
