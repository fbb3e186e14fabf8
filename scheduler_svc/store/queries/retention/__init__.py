"""Queries on the end of what is stored.

expiry.py   ended tasks whose days are over
deleted.py  deleted tasks and tenants
storage.py  use of the blob store, and its alarm
"""
