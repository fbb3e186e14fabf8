"""What users see: pure functions to tables and plots, the live view, and trackers.

progress.py  what a task's events add up to
tables.py    tables of tasks, of the stack, and of a start
listing.py   tables that stay readable at any width
storage.py   the blob store
live.py      the view that changes while a command waits
plots.py     plots as PNG files
trackers.py  Weights & Biases, MLflow, TensorBoard and a file
"""
