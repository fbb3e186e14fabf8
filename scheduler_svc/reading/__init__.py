"""Answers to clients that read, from PostgreSQL, the blob store and the stream of samples. Stateless: any replica answers.

Only the subject determines whose data an answer may contain; a server with keys lets each tenant publish under its own name only.
A foreign id and an unknown id get the same answer, from the same query. `verbs/` maps verbs to answers; answers about tenancy are in
`tenancy/`.

tasks.py       tasks, status, why
events.py      events, failures
usage.py       usage
progress.py    spec, steps, evaluations, versions, timeline, samples
adapters.py    adapter, chunk
deployment.py  envs, pools, replicas

Their SQL only reads: each function takes the tenant whose rows it may see; None stands for all.
"""
