"""Queries on tenants: what each may use, has used and has stored.

tenants.py   weight, retention and limits
ledger.py    what tasks used
served.py    what served requests used
aliases.py   names of versions
packages.py  uploaded packages and files
webhooks.py  webhooks, and what is to be sent to them
"""
