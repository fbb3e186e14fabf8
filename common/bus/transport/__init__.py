"""The connection to NATS.

connection.py  a connection that survives outages of the server
address.py     addresses of servers, and certificates
refusals.py    errors about a key and its permissions
timings.py     timeouts and intervals
"""
