"""The scheduler: jobs in, prompts and batches out.

Consumes `jobs.>`, `trajectories.checked.>`, the headers of `trajectories.scored.>`, `weight-updated.>` and `failed.>`.
Produces `prompts.check`, `prompts.open`, `trajectories.batch`, `events` and the key-value bucket `tasks`.
Owns PostgreSQL: tasks, versions, staleness, fairness, the ledger. Postgres decides; Python asks.

    service.py     consumers, the relay and the tick, wired together
    jobs.py        submit, cancel, pause, resume
    deletion.py    delete, prune
    settlement.py  what came back: checks, scores, weights
    letters.py     dead letters: settled, and sent again
    dispatch.py    what goes out: admission and batches
    policy.py admission.py fairness.py batching.py     the decisions, pure
    queries/       every SQL statement, a function per sentence of the domain
    tables.py views.py states.py             the schema
"""
