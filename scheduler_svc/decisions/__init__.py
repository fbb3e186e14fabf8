"""Decisions as pure functions: no clock, no database, no NATS.

scheduling_policy.py  which running tasks may open groups, and whose steps leave for the trainer
admission.py          how many groups of which task to release now
fair_share.py         which task goes next: weighted fair share over tenants, then over their tasks
min_share.py          guaranteed share of a pool by tenant and task
oversubscription.py   work in flight as a multiple of what the samplers decode concurrently
shares.py             shares of tenants and tasks, load and capacity of a pool
batching.py           which groups make the next optimizer step
billing.py            who pays for work that trained nothing
budgets.py            whether a tenant can pay for another group
evaluation_plan.py    which versions are evaluated, on which prompts
evaluation_results.py their results by protocol, differences between versions, and progress
best_version.py       which version is the best
retention.py          which blobs of past versions are kept
task_end.py           why a task ends before its last step
task_warnings.py      signs that a task runs and learns nothing
waiting.py            why a task waits, and the number that would have to change
"""
