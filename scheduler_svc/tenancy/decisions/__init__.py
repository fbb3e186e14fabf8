"""Money of tenants.

billing.py  who pays for work that trained nothing
budgets.py  whether a tenant can pay for another group
"""
