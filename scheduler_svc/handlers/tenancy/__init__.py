"""Jobs about tenants, by operators and by tenants.

access.py           set-access
tenant_settings.py  set-tenant
prices.py           set-price
budgets.py          set-budget
pools.py            move-pool
aliases.py          aliases
webhooks.py         webhooks
packages.py         uploaded packages and files
"""
