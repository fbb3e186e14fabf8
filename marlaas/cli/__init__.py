"""The command line: `marlaas --help`. Its packages are named after the users of the commands.

app.py      the verbs, and the command's exit status
session.py  options, output, data files and the connection that all commands share
user/       tasks, usage, environments, files, aliases, webhooks, chat
operator/   tenants, keys, money, audit, streams
machine/    the stack on this machine
"""

from marlaas.cli.app import main, run

__all__ = ["main", "run"]
