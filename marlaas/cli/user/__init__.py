"""Commands of users, with their tables.

tasks.py         tasks: submit, follow, control, fetch
usage.py         usage, storage and their costs
environments.py  environments
files.py         files of rows
aliases.py       names of versions
webhooks.py      webhooks
chat.py          a conversation with a version
"""
