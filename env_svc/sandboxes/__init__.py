"""Sandboxes for code that a policy wrote.

Consumes  Python source and limits
Produces  its output and how it ended
Owns      interpreters, processes and containers; each run gets a fresh one and shares nothing with another.
Layout    sandbox.py is the interface and selection.py the choice among bubblewrap.py, docker.py, confined.py (with kernel.py) and monty.py
          (with monty_lacks.py); current.py holds the process's one; interpreter.py, prelude.py and output.py run CPython;
          bwrap_arguments.py has what bubblewrap.py and hosted processes give to bwrap
"""
