"""The gateway: HTTP in, jobs and asks out. It keeps nothing that may not be lost.

Consumes  HTTP requests with a key; `events.<tenant>.<task>`
Produces  `jobs.*.<tenant>` and `ask.<tenant>.<verb>`, each as the key that the request brought
Owns      nothing

access.py       who sends a request
keys.py         HTTP keys that are valid
connections.py  a connection to NATS for each key in use
"""
