"""The schema as SQLAlchemy Core tables. `migrations/` builds the same; a test compares the two.

Invariants are constraints: one step per (task, version), one trajectory per (task, group, member), states from their
enums, versions within the task's steps, a reason for every void row.

work.py          tasks, groups, trajectories, steps, evaluations
tenancy.py       keys, limits, audit, billing, webhooks, packages, aliases
base.py          metadata, kinds of columns, events, outbox, dead letters
accelerators.py  shared accelerators
"""

# pyright: reportUnusedImport=false
from scheduler_svc.base.tables.accelerators import accelerators, executors, moves, pool_clocks, slice_shares, slices
from scheduler_svc.base.tables.base import dead_letters, event_numbers, events, metadata, outbox, relay
from scheduler_svc.base.tables.tenancy import (
    aliases,
    audit,
    budgets,
    deleted_usage,
    keys,
    ledger,
    limits,
    package_parts,
    package_usage,
    packages,
    prices,
    rates,
    served_requests,
    served_usage,
    webhook_deliveries,
    webhooks,
)
from scheduler_svc.base.tables.work import (
    IN_TRAINING,
    MAY_ADMIT,
    NUMBERED_IN_TRAINING,
    allowance_of,
    deleted_tasks,
    evaluations,
    groups,
    replicas,
    steps,
    store_alarm,
    stored_blobs,
    tasks,
    tenants,
    trajectories,
)
