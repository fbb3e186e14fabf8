"""Commands that operators type.

tenants.py   accounts, weights, limits and deletion of tenants
keys.py      keys
prices.py    prices
pools.py     pools and shared accelerators · calibration.py measured moves
budgets.py   budgets
audit.py     who has done what; for owners too
streams.py   copies of streams
database.py  tenants that read their own rows
"""
