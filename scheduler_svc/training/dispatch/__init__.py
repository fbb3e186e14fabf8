"""Dispatch: opens groups, and sends steps to the trainer.

candidates.py  tasks that admission chooses from
admission.py   opens the next groups
pace.py        how many groups each task's pace allows
steps.py       sends complete batches to the trainer
"""
