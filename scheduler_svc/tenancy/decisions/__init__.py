"""Pure functions about tenants.

shares.py   shares of tenants and tasks, load and capacity of a pool
budgets.py  whether a tenant can pay for another group, and the payer of void work
expiry.py   when an ended task's data is announced as expiring, and deleted
"""
