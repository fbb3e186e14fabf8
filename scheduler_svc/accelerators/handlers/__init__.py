"""Message handlers; each runs in one transaction.

context.py  HandlerContext: what every handler is given
intake/     jobs about tasks
tenancy/    jobs about tenants
results/    what environments, trainers and gateways report, and dead letters
"""
