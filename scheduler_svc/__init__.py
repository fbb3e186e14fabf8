"""The scheduler: jobs in, prompts and batches out.

Consumes `jobs.>`, `trajectories.checked.>`, the headers of `trajectories.scored.>`, `weight-updated.>` and `failed.>`.
Answers `ask.<tenant>.<verb>`. Produces `prompts.check`, `prompts.open`, `trajectories.batch`, `events` and the key-value bucket `tasks`.
Owns PostgreSQL: tasks, versions, staleness, fairness, the ledger. Postgres decides; Python asks. Layout:

    service.py    consumers, periodic work and the tick
    handlers/     one message each: jobs, deletions, checks, packages, scores, weight updates, served requests, dead letters
    ask/          answers to clients that read
    dispatch/     admission of groups, and batches
    homes/        which replica of its pool a task samples on, and trains on
    lifecycle/    how tasks, groups and evaluations begin and end
    decisions/    who goes next, what is kept, which warnings stand: pure functions
    webhooks/     messages to addresses that tenants choose
    maintenance/  the outbox relay, garbage collection, lost steps, replicas
    store/        the schema, the database, and every SQL statement
    doctor/       rules that must always hold, and a program that checks them
    samples.py    attempts that steps keep, in their stream
    reconcile.py  one history from two stores that were restored from different backups
    migrate.py    brings the schema to this version, which revision.py names; settings.py, metrics.py
"""
