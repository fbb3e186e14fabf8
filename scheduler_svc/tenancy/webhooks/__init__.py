"""Sends messages to webhooks: addresses that tenants choose, on the internet or where an operator permits it.

jobs.py       jobs that set and delete them, and answers to asks
addresses.py  which addresses may be reached
sender.py     takes what waits, sends it and records the outcome
signing.py    signatures of Standard Webhooks, and secrets as the database has them
"""
