"""Who goes next on a pool, and how much is in flight.

admission.py         how many groups of which task to release now
fair_share.py        which task goes next: weighted fair share over tenants, then over their tasks
min_share.py         guaranteed share of a pool by tenant and task
oversubscription.py  work in flight as a multiple of what the samplers decode concurrently
pool_times.py        which time deadlines go by while a pool is parked, and what it is admitted
waiting.py           why a task waits, and the number that would have to change
"""
