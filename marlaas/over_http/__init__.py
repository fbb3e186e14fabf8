"""The SDK's way in over HTTP: what `common/client_api` is over NATS. Its routes: docs/http.md.

address.py     addresses of gateways
connection.py  Connection: requests, repeated while nothing answers; refusals and failures as errors of the client
door.py        HttpDoor: questions, jobs, and the stream of events, which reconnects
chat.py        replies of a version, as they are sampled
"""
