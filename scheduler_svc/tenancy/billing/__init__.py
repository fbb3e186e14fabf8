"""What work costs.

ledger.py   quantities, each booked once
served.py   ends of served requests, booked
prices.py   prices, which are appended and never changed, and invoices by day
budgets.py  what tenants may spend, and have spent
"""
