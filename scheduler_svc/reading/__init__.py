"""Answers to clients that read, from PostgreSQL, the blob store and the stream of samples. Stateless: any replica answers.

The subject alone says whose data an answer may hold; a server with keys lets each tenant publish under its own name only.
"Not yours" and "not there" are one answer of one query. The table of verbs is in `verbs/`; tenants' subjects answer for themselves.

training/      answers about tasks
deployment.py  environments, pools, replicas
queries/       SQL that only reads
"""
