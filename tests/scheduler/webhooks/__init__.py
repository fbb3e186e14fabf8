"""Webhooks.

from the event to the receiver    test_webhooks.py
permitted addresses, and secrets  test_addresses.py

Helpers: receiver.py, an HTTP server that answers as asked.
"""
