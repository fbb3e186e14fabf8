"""Tenants: accounts and keys, limits and rates, shares, settings, money, webhooks.

access.py            jobs that record accounts and keys · keys.py their rows · announced_keys.py what gateways know of HTTP keys
limits.py            limits and what is used of them · announced_limits.py what a refusal says
rates.py             jobs and asks of a minute · job_rates.py jobs beyond a tenant's rate
shares.py            tokens consumed and work in flight, by tenant and task
tenants.py           rows of tenants · tenant_settings.py jobs that change them
question.py          Question: whose an ask is, and what it is answered from
answer_access.py, answer_audit.py, answer_terms.py  answers to asks
billing/             prices, budgets, ledger, invoices · webhooks/ messages to addresses that tenants choose · decisions/ pure functions
"""
