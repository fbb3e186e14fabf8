"""What tenants and operators do with a tenant.

tenants.py   limits of tenants; invoices, prices and budgets; who has done what
aliases.py   names of versions
packages.py  uploads of environments
files.py     uploads of rows
webhooks.py  addresses that are told of ends and budgets
"""
