"""Commands of operators, with their tables.

tenants.py   accounts, weights, limits and deletion of tenants; their read access to their own rows
keys.py      keys
billing.py   prices and budgets
pools.py     pools and shared accelerators · calibration.py measured moves
audit.py     the audit log; for owners too
streams.py   backups of streams
"""
