"""Decisions as pure functions: no clock, no database, no NATS.

scheduling_policy.py  which running tasks may open groups, and whose steps leave for the trainer
admission.py          how many groups of which task to release now
fair_share.py         who goes next: weighted fair share over tenants, then over their tasks
min_share.py          the share of a pool that nobody may take from a tenant
oversubscription.py   how much more than its samplers decode at once a pool may have in flight
batching.py           which groups make the next optimizer step
evaluation_plan.py    which versions are evaluated, and on what
retention.py          which blobs of past versions are kept
task_warnings.py      signs that a task runs and learns nothing
"""
