"""A gateway in the test's process.

serving.py     the gateway and its clients
entering.py    HTTP keys, and their checks
deltas.py      made-up replies, in place of samplers
files.py       files for fine-tuning
"""
