"""Output for users: pure functions to tables and plots, the live view, and trackers.

progress.py  a task's state, derived from its events
tables.py    tables of tasks and of the stack
samples.py   attempts of a step
listing.py   tables that stay readable at any width
live.py      the view that is updated while a command waits
plots.py     plots as PNG files
trackers.py  TensorBoard, Weights & Biases, Trackio
"""
