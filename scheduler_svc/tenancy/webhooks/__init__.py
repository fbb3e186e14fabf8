"""Sends messages to webhooks: URLs set by tenants, on the public internet or in networks that an operator permits.

jobs.py       jobs that set and delete webhooks, and answers to asks
addresses.py  permitted addresses
sender.py     sends waiting messages and records the outcome
signing.py    signatures of Standard Webhooks, and encryption of secrets in the database
"""
