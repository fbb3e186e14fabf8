"""Money.

budgets                      test_budgets.py
prices and invoices          test_invoices.py
served tokens                test_served.py
random histories with kills  test_histories.py

Helpers: histories.py, prices.py (costs, counted in Python).
"""
