"""What tenants are, have and pay for: jobs that change it, and what is asked for.

access.py    accounts and keys
terms.py     limits of HTTP requests, and their use
billing.py   prices, budgets and invoices
audit.py     who has done what
aliases.py   names of versions
packages.py  uploaded packages
files.py     uploaded files of rows
webhooks.py  addresses that are told of ends and budgets
"""
