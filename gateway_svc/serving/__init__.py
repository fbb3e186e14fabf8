"""Serving: the gateway's side of requests to versions. No HTTP here.

Consumes  replies.<gateway>, by NATS's core
Produces  prompts.serve.<pool>.<shard>.<task>.<request>, cancels.<replica>, served.<task>.<request>

    client.py    a request as a stream of deltas, which survives the replicas that sample it
    offers.py         pools that serve
    send_window.py    which of a tenant's requests are sent, and which wait here
    stream_quota.py   how many requests this process may have, of all tenants and of one
    restarts.py       how long the start of a sampler takes that will serve again
    progress.py  what has come of one request: which replica has it, what is missing; pure
    buffer.py    deltas that the client has not read yet, so many and no more
    given.py     what the client of one request was given
    texts.py     texts of tokens, for samples
    reports.py   ended requests, for the scheduler to book
"""
