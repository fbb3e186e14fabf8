"""Operations of tenants and operators on a tenant.

tenants.py   limits of tenants; invoices, prices and budgets; the audit log
aliases.py   names of versions
packages.py  uploads of environments
files.py     uploads of rows
webhooks.py  addresses notified of ends of tasks and of budgets
"""
