"""Entry points of the scheduler: the handler of each job's verb, and the answer of each ask's verb.

job_intake.py  takes jobs, fairly by tenant
jobs.py        table of jobs' verbs, and the jobs on tasks
asks.py        answers requests: concurrency limits, errors, and the table of asks' verbs
"""
