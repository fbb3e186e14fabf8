"""The SDK's access over HTTP, the counterpart of `common/client_api` over NATS. Routes: docs/http.md.

address.py     addresses of gateways
connection.py  Connection: requests, retried while no gateway answers; refusals and failures as errors of the client
door.py        HttpDoor: questions, jobs, and the stream of events, which reconnects
chat.py        replies of a version, as they are sampled
"""
