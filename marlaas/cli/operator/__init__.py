"""Commands that operators type, with their tables.

tenants.py   accounts, weights, limits and deletion of tenants; those that read their own rows
keys.py      keys
billing.py   prices and budgets
pools.py     pools and shared accelerators · calibration.py measured moves
audit.py     who has done what; for owners too
streams.py   copies of streams
"""
