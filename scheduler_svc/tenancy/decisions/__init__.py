"""Pure functions about tenants.

shares.py   shares of tenants and tasks, load and capacity of a pool
budgets.py  whether a tenant can pay for another group, and who pays for work that trained nothing
expiry.py   when an ended task is announced as expiring, and deleted
"""
