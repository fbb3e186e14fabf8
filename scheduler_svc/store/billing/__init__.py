"""What work costs.

prices.py    prices, which are appended and never changed
invoices.py  quantities and money by day
"""
