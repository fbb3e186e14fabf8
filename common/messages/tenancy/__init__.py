"""Tenants, their resources and billing: jobs that change them, and questions about them.

access.py    accounts and keys, and the audit log
billing.py   prices, budgets and invoices; limits of HTTP requests, and their use
named.py     resources that a tenant names
aliases.py   names of versions
files.py     uploaded packages, and files of rows
webhooks.py  addresses notified of ends of tasks and of budgets
"""
