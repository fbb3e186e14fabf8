"""Sandboxes for code that a policy wrote.

Consumes  Python source and limits
Produces  its output and how it ended
Owns      interpreters, processes and containers; each run gets a fresh one and shares nothing with another.
Layout    sandbox.py is the interface; current.py chooses and holds this process's sandbox: bubblewrap.py, docker.py, confined.py
          (with kernel.py) or monty.py; interpreter.py runs CPython
"""
