"""What work costs.

prices.py    prices, which are appended and never changed
budgets.py   what tenants may spend, and have spent
invoices.py  quantities and money by day
"""
