"""Sends messages to webhooks: addresses that tenants choose, on the internet or where an operator permits it.

jobs.py       jobs that set and delete them · answers.py answers to asks
addresses.py  which addresses may be reached
post.py       one request, and the status of its answer
signing.py    signatures of Standard Webhooks
sealing.py    secrets as the database has them
sender.py     takes what waits, sends it and records the outcome
"""
