"""Serving: requests to versions in, tokens out while they are sampled.

Consumes  prompts.serve.<pool>.*.*.*, cancels.<replica>, and the key-value bucket `replicas`
Produces  replies.<gateway>, by NATS's core
Layout    top to bottom, imports go down only

    service.py       handler of a request, and what ends one early; texts of single tokens, for samples
    aliases.py       versions that aliases keep loaded
    request.py       one attempt at a request: its prompt, adapter and tokens
    admission.py     who is answered next, and how many concurrently
    replies.py       one message per gateway every few milliseconds
    prompts.py       what is to be continued, in tokens
    reply.py         tokens to deltas: text, thoughts and calls
"""
