"""Questions, and who may read their answers.

every verb                            test_verbs.py
refusals and their words              test_refusals.py
lists, orders and pages               test_listing.py
what one task has come to             test_progress.py
shared accelerators                   test_accelerators.py
downloads and the audit               test_downloads.py
cost, whatever the number of tenants  test_growth.py
random histories of two tenants       test_histories.py

Helpers: histories.py, questions.py.
"""
