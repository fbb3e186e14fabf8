"""Sandboxes for code that a policy wrote.

Consumes  Python source and limits
Produces  its output and how it ended
Owns      interpreters, processes and containers; each run gets a fresh one and shares nothing with another.
Layout    sandbox.py is the interface; current.py chooses the process's one among bubblewrap.py, docker.py, confined.py (with kernel.py)
          and monty.py, and holds it; interpreter.py runs CPython
"""
