"""The connection to NATS.

connection.py  a connection that survives the server's absence
address.py     addresses of servers, and certificates
refusals.py    what a connection is told about its key
timings.py     timeouts and intervals
"""
