"""Costs of work.

ledger.py   quantities, each booked once
served.py   booking of ended served requests
prices.py   prices, which are append-only, and invoices by day
budgets.py  tenants' budgets and their usage
"""
