"""What work costs.

ledger.py    quantities, each booked once
served.py    ends of served requests, booked · served_sql.py their rows
prices.py    prices, which are appended and never changed · price_jobs.py jobs that set them
budgets.py   what tenants may spend, and have spent · budget_jobs.py jobs that set them
invoices.py  quantities and money by day
answers.py   answers to asks
"""
