"""The SDK's way in over HTTP: what `common/client_api` is over NATS. Its routes: docs/http.md.

address.py     addresses of gateways
connecting.py  an address and a key to a door
connection.py  Connection: requests, repeated while nothing answers
refusals.py    refusals by a gateway, and failures of the connection, as errors of the client
door.py        HttpDoor: questions, jobs and events
events.py      the stream of events, which reconnects
chat.py        replies of a version, as they are sampled
"""
