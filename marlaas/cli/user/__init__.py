"""Commands that users type, with their tables.

tasks.py         tasks: submit, follow, control, fetch
usage.py         what was used and is stored, and what that costs
environments.py  environments
files.py         files of rows
aliases.py       names of versions
webhooks.py      webhooks
chat.py          a conversation with a version
"""
