"""The doors of the scheduler: which handler each verb of a job has, and which answer each verb of an ask.

job_intake.py  takes jobs, fair by tenant · jobs.py table of their verbs, and the jobs about tasks
asks.py        requests in, answers out: how many concurrently, and what a failure is answered with; table of their verbs
"""
