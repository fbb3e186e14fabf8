"""What tenants are, have and pay for: jobs that change it, and what is asked for.

access.py    accounts and keys, and who has done what
billing.py   prices, budgets and invoices; limits of HTTP requests, and their use
aliases.py   names of versions
files.py     uploaded packages, and files of rows
webhooks.py  addresses that are told of ends and budgets
"""
