"""Chaos: the real stack, four tasks, and a seeded series of faults; then every task must have finished and the doctor be content.

launch.py     starts a service, with a crash point where one was left for it
faults.py     the kinds of faults, and how each is done
harness.py    the run: tasks, faults one after the other, recovery times, the doctor's verdict
"""
