"""Tenants: accounts and keys, limits and rates, shares, settings, money, webhooks.

access.py    jobs that record accounts and keys, and answers about them and the audit · keys.py their rows, and what gateways know
limits.py    limits and what is used of them
rates.py     jobs and asks of a minute, and jobs beyond a tenant's rate
shares.py    tokens consumed and work in flight, by tenant and task
tenants.py   rows of tenants, and jobs that change their settings
question.py  Question: whose an ask is, and what it is answered from
billing/     prices, budgets, ledger, invoices · webhooks/ messages to addresses that tenants choose · decisions/ pure functions
"""
