"""Limits of HTTP, shared by all gateways: requests and tokens a minute, and concurrent replies, of each tenant and each key.

What is used is in the bucket `http-use`, one entry for each tenant and key, which gateways change by compare-and-set. So the sum over
all gateways never exceeds a limit, however many there are, and none needs to know of the others. A gateway takes ahead what it will need
in AHEAD_S at its present pace, at most a hundredth of the limit, so that most requests wait for no message. Requests that come while an
exchange is under way share the next one.

window.py    what is used, in slots of a sliding minute; pure
account.py   one tenant's or key's part at this gateway: what it took ahead, its replies, its exchanges
limiter.py   Limiter: the accounts of a request, its estimated tokens, and its tenant's terms
preparation_slots.py  requests of one sender that this process prepares concurrently, and what their processor time costs it
refusals.py  problems and headers about limits and budgets
"""
