"""HTTP limits shared by all gateways: requests and tokens per minute, and concurrent replies, per tenant and per key.

Usage is stored in the bucket `http-use`, one entry per tenant and key, which gateways change by compare-and-set. So the sum over
all gateways never exceeds a limit, however many there are, and gateways need not know each other. A gateway prefetches what it needs
for AHEAD_S at its present rate, at most a hundredth of the limit, so that most requests wait for no message. Requests that arrive during an
exchange share the next one.

window.py    usage in slots of a sliding minute; pure
account.py   one tenant's or key's usage at this gateway: prefetched amounts, replies, exchanges
limiter.py   Limiter: the accounts of a request, its estimated tokens, and its tenant's terms
preparation_slots.py  pacing per sender: concurrent preparation of requests, and charges for their processor time
refusals.py  problems and headers about limits and budgets
"""
