"""The scheduler: jobs in, prompts and batches out.

Consumes `jobs.>` (with keys `from.<tenant>.jobs.>`), `trajectories.checked.>`, `trajectories.package.>`, the headers of
`trajectories.scored.>`, `weight-updated.>`, `served.>`, `leases.done.>`, `leases.now.>` and `failed.>`; reads `samples.>` and the buckets
`replicas`, `leases` and `history`. Answers `ask.<tenant>.<verb>`.
Produces `prompts.check`, `prompts.package`, `prompts.open`, `trajectories.batch`, `leases.order`, `events`, blobs of uploads, and the
key-value buckets `tasks`, `aliases`, `http-keys`, `pools` and `history`.
Owns PostgreSQL: tasks, versions, staleness, fairness, the ledger. Postgres decides; Python asks.

Folders are subjects; handlers, decisions and SQL are modules inside them. Imports go down this list only (pyproject.toml):

    service.py       consumers, periodic work and the tick
    verbs/           the handler for each job's verb, and the answer for each ask's verb
    upkeep/          the outbox relay, deletion, lost steps, replicas, consistency of the stores
    reading/         answers about tasks and the deployment
    training/        tasks from submission to their end: admission, scores, steps, evaluations, aliases, homes
    accelerators/    accelerators that several base models share
    uploads/         packages and files of tenants
    tenancy/         accounts, keys, limits, shares, money, webhooks
    base/            the database, its schema and roles, the outbox, the audit, and the handlers' context

Separate programs: doctor/ (checks invariants) · migrate.py (migrates the schema to this version) · reconcile.py (makes stores that were
restored from different backups consistent) · record_access.py, tenant_access.py (accounts and roles while no scheduler
runs) · plan.py (whether pools should share accelerators). settings.py has the settings.
"""
