"""Who goes next on a pool, and how much is in flight.

scheduling_policy.py  which running tasks may open groups, and whose steps leave for the trainer
admission.py          how many groups of which task to release now
fair_share.py         which task goes next: weighted fair share over tenants, then over their tasks
min_share.py          guaranteed share of a pool by tenant and task
oversubscription.py   work in flight as a multiple of what the samplers decode concurrently
shares.py             shares of tenants and tasks, load and capacity of a pool
waiting.py            why a task waits, and the number that would have to change
"""
