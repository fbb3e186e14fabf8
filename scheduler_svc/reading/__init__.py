"""Answers to clients that read, from PostgreSQL, the blob store and the stream of samples. Stateless: any replica answers.

The subject alone says whose data an answer may hold; a server with keys lets each tenant publish under its own name only.
"Not yours" and "not there" are one answer of one query. The table of verbs is in `verbs/`; tenants' subjects answer for themselves.

tasks.py       tasks, status, why
events.py      events, failures
usage.py       usage
progress.py    spec, steps, evaluations, versions, timeline, samples
adapters.py    adapter, chunk
deployment.py  envs, pools, replicas

Their SQL only reads: each function takes the tenant whose rows it may see; None stands for all.
"""
