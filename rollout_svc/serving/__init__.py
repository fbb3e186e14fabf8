"""Serving: requests to versions in, tokens streamed out as they are sampled.

Consumes  prompts.serve.<pool>.*.*.*, cancels.<replica>, and the key-value buckets `aliases` and `replicas`
Produces  replies.<gateway>, by core NATS
Layout    top to bottom, imports go down only

 service.py       handler of a request, and its cancellation; texts of single tokens, for samples
 aliases.py       versions kept loaded for aliases
 request.py       one attempt at a request: its prompt, adapter and tokens
 goals.py         deadlines of requests, and whether their tokens met them
 admission.py     fair admission to the engine, with a concurrency limit
 replies.py       one message per gateway every few milliseconds
 prompts.py       prompts of requests, as tokens
 reply.py         tokens to deltas: text, reasoning and tool calls
"""
