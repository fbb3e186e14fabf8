"""The door for reading: answers `ask.<tenant>.<verb>` from PostgreSQL, the blob store and the stream of samples. Stateless: any
replica answers.

The subject alone says whose data an answer may hold; a server with keys lets each tenant publish under its own name only.
"Not yours" and "not there" are one answer of one query.

asks.py        requests in, answers out: how many at once, and what a failure is answered with
verbs.py       the table of verbs
question.py    Question: whose it is, and what it is answered from
training/      answers about tasks
tenancy/       answers about tenants
deployment.py  envs, pools, replicas
downloads.py   downloads that are in the audit already
"""
