"""Messages about shared accelerators.

pool_jobs.py      jobs of operators: park, drain, wake, release, measure
lease_answers.py  answers of executors to orders
asked.py          questions: executors, slices, moves, traces
"""
