"""Commands that users type.

tasks.py         tasks: submit, follow, control, fetch
environments.py  environments
files.py         files of rows
aliases.py       names of versions
webhooks.py      webhooks
chat.py          a conversation with a version
"""
