"""Tables of what tenants are, have and pay for.

access.py    tenants and keys
billing.py   invoices, prices and budgets
audit.py     who has done what
packages.py  uploaded packages
files.py     uploaded files
webhooks.py  webhooks, and messages to them
"""
