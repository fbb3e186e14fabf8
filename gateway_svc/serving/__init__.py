"""Serving: the gateway's side of requests to versions. No HTTP here.

Consumes  replies.<gateway>, by NATS's core
Produces  prompts.serve.<pool>.<shard>.<task>.<request>, cancels.<replica>, served.<task>.<request>

client.py        a request as a stream of deltas, which survives the replicas that sample it
pools.py         pools that serve, and how long the start of a sampler takes that will serve again
stream_quota.py  which requests this process takes, and which of them it sends
progress.py      what has come of one request, what its client has not read yet, and what it was given
texts.py         texts of tokens, for samples
reports.py       ended requests, for the scheduler to book
"""
