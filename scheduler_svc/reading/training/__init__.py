"""Answers about tasks.

tasks.py     tasks, status, events, usage, failures
progress.py  spec, steps, evaluations, versions
samples.py   samples
adapters.py  adapter, chunk
waiting.py   why
"""
