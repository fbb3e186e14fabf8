"""A client's way in: jobs are published, everything else is asked for, and events are listened to.

The SDK, the command line and the gateway have it in common. It needs no JetStream: it publishes `jobs.*.<tenant>` and `ask.<tenant>.*`, and
hears `events.<tenant>.>` and its inbox.

protocol.py   AnyDoor and Jobs: what a client needs of its way in, NATS or HTTP
asking.py     Door: asks, with retries and clear errors
jobs.py       NatsJobs: jobs about tasks
following.py  events without loss or repetition
answers.py    answers to jobs, which are events
submission.py submissions of tasks
control.py    jobs about a task that there is
failures.py   dead letters
billing.py    invoices, prices and budgets
tenants.py    limits of tenants
audit.py      who has done what
packages.py   uploads of environments
files.py      a tenant's files: rows to train on
aliases.py    a tenant's names for versions
webhooks.py   addresses that are told of ends and budgets
names.py      names that a tenant gives
download.py   adapters, and what is stored
progress.py   steps, evaluations and versions of a task
errors.py     what a client is told, and checks before anything is sent
"""
