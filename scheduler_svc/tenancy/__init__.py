"""Tenants: accounts and keys, limits and rates, shares, settings, money, webhooks.

access.py    jobs that record accounts and keys, and answers about them and the audit
keys.py      rows of accounts and keys, and the HTTP keys that gateways know
limits.py    limits and their usage
rates.py     jobs and asks per minute, and jobs beyond a tenant's rate
shares.py    tokens consumed and work in flight, by tenant and task
tenants.py   rows of tenants, and jobs that change their settings
question.py  Question: the tenant of an ask, and the sources of its answer
requests.py  jobs about no task: their answers and refusals
billing/     prices, budgets, ledger, invoices
webhooks/    messages to URLs of tenants
decisions/   pure functions
"""
