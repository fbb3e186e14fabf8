"""What an evaluation says about a version, as the scheduler reports it and as users compare it.

intervals.py  standard errors, 95 % intervals and paired differences
report.py     the data of an `evaluation` event
"""
