"""Message handlers; each runs in one transaction.

context.py             HandlerContext: what every handler is given
job_intake.py          takes jobs, fair by tenant
jobs.py                submit, cancel, pause, resume
deletion.py            delete, prune
preview.py             preview
tenant_settings.py     set-tenant
access.py              set-access
prices.py              set-price
budgets.py             set-budget
offer.py               Offer: what the deployment has for a task
environment_checks.py  environments checked
scores.py              trajectories scored, and groups past their deadlines
weight_updates.py      steps trained
served.py              ends of served requests
dead_letters.py        dead letters: settled, and resent on request
"""
