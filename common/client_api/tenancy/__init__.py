"""What tenants and operators do with a tenant.

tenants.py   limits of tenants
billing.py   invoices, prices and budgets
audit.py     who has done what
aliases.py   names of versions
accelerators.py  shared accelerators, and what operators order of pools
packages.py  uploads of environments
files.py     uploads of rows
webhooks.py  addresses that are told of ends and budgets
"""
