"""Answers about tenants.

access.py    access
terms.py     terms, for gateways
billing.py   prices, budgets, invoice
audit.py     audit
aliases.py   aliases
files.py     files, and their bytes
webhooks.py  webhooks
"""
