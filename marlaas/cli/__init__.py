"""The command line: `marlaas --help`.

app.py           the verbs, and how the command ends
init.py          what a stack needs before its first start
stack.py         commands for the stack on this machine
tasks.py         commands for tasks
environments.py  commands for environments
session.py       options, output and the connection that they share
"""

from marlaas.cli.app import main, run

__all__ = ["main", "run"]
