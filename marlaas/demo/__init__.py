"""`marlaas demo`: a stack of its own, tasks that train on it, and what they gained.

run.py           the stack and its end; the three tasks
composition.py   `--compose`: a task that its base model cannot do
"""
