"""Numbers of evaluations.

standard errors, intervals, paired differences  test_intervals.py
coverage of intervals, and power of pairing     test_coverage.py
data of an `evaluation` event                   test_report.py

Helpers: coverage.py, the program that measures the coverage.
"""
