"""The SDK's way in over HTTP: what `common/door` is over NATS. Its routes: docs/http.md.

address.py     addresses of gateways
connecting.py  an address and a key to a door
connection.py  Connection: requests, repeated while nothing answers
refusals.py    answers that say no, and failures of the connection, as errors of the client
questions.py   each question's route
events.py      streams of events, continued over reconnects
door.py        HttpDoor
jobs.py        HttpJobs
tenancy/       files, aliases and webhooks of a tenant
downloading.py a download that goes on where it broke off
chat.py        replies of a version, as they are sampled
"""
