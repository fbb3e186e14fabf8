"""Serving: the gateway's side of requests to versions. No HTTP here.

Consumes  replies.<gateway>, by core NATS; the key-value buckets `replicas` and `history`
Produces  prompts.serve.<pool>.<shard>.<task>.<request>, cancels.<replica>, served.<task>.<request>

client.py        a request as a stream of deltas, which survives the failure of replicas
pools.py         pools that serve, and the expected time until a starting sampler serves
places.py        requests in flight of pools with latency goals, and whether one more would be in time
stream_quota.py  limits on accepted requests, and on those sent to replicas
progress.py      received deltas of one request, its client's unread deltas, and tokens delivered
texts.py         texts of tokens, for samples
reports.py       reports of ended requests, for the scheduler to book
"""
