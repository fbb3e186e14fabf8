"""Jobs about tasks, as users send them.

job_intake.py   takes jobs, fair by tenant
job_rates.py    jobs beyond a tenant's rate
jobs.py         submit, cancel, pause, resume
preview.py      preview
examination.py  every reason against a submission
deletion.py     delete, prune
offer.py        Offer: what the deployment has for a task
"""
