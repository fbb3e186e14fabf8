"""What a task's training carries from step to step, in memory and in blobs.

resident.py        a task in memory: adapter vector, optimizer moments, version
optimizer.py       AdamW on one vector
checkpoint.py      a resident as a blob, and back
lineage.py         which checkpoint and which batches lead to a version
step_recording.py  a record of each step, from which it can be replayed
"""
