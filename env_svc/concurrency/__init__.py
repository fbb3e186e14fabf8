"""Concurrency primitives of this service, independent of environments. They own no task beyond their callers'.

completion.py  results in batches, as they become ready
"""
