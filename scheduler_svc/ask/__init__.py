"""The door for reading: answers `ask.<tenant>.<verb>` from PostgreSQL, the blob store and the stream of samples. Stateless: any
replica answers.

The subject alone says whose data an answer may hold; a server with keys lets each tenant publish under its own name only.
"Not yours" and "not there" are one answer of one query.

asks.py        requests in, answers out: how many at once, and what a failure is answered with
verbs.py       the table of verbs
question.py    Question: whose it is, and what it is answered from
access.py      access
audit.py       audit
billing.py     prices, budgets, invoice
tasks.py       tasks, status, events, usage, failures
waiting.py     why
deployment.py  envs, pools, replicas
terms.py       terms, for gateways
progress.py    spec, steps, evaluations, versions
samples.py     samples
adapters.py    adapter, chunk
downloads.py   downloads that are in the audit already
"""
