"""Who a caller is: its key, and the connection to NATS that its requests use.

access.py       a request's key as the door's caller
keys.py         HTTP keys that are valid, followed in their bucket
connections.py  a connection to NATS for each key in use
"""
