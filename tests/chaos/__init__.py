"""Chaos: the real stack, four tasks, and a seeded series of faults; then every task must have finished, the doctor be
content, and every step come out the same when it is computed again.

launch.py           starts a service, with a crash point where one was left for it
proxy.py clock.py disk.py    what a machine is made to do: wires that are cut, clocks that jump, a disk that is full
target.py           a running stack with all of that
*_faults.py         how each fault is done; faults.py lists the kinds
harness.py          the run: tasks, faults one after the other, recovery times, the doctor's verdict
report.py           recovery times by kind of fault, for the terminal and as a file
replay.py           every step once more
"""
