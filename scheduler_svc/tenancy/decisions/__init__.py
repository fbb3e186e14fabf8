"""Pure functions about tenants.

shares.py   shares of tenants and tasks, load and capacity of a pool
billing.py  who pays for work that trained nothing
budgets.py  whether a tenant can pay for another group
expiry.py   when an ended task is announced as expiring, and deleted
"""
