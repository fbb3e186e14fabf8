"""The schema as SQLAlchemy Core tables. `migrations/` builds the same; a test compares the two.

Invariants are constraints: one step per (task, version), one trajectory per (task, group, member), states from their
enums, versions within the task's steps, a reason for everything void.

work.py (tasks, groups, trajectories, steps, evaluations) · tenancy.py, billing.py, packages.py, webhooks.py (tenants) ·
messages.py (events, outbox, dead letters) · accelerators.py · base.py (metadata and kinds of columns)
"""

# pyright: reportUnusedImport=false
from scheduler_svc.base.tables.accelerators import accelerators, executors, moves, pool_clocks, slice_shares, slices
from scheduler_svc.base.tables.base import metadata
from scheduler_svc.base.tables.billing import budgets, deleted_usage, ledger, package_usage, prices, served_requests, served_usage
from scheduler_svc.base.tables.messages import dead_letters, event_numbers, events, outbox, relay
from scheduler_svc.base.tables.packages import package_parts, packages
from scheduler_svc.base.tables.tenancy import aliases, audit, keys, limits, rates
from scheduler_svc.base.tables.webhooks import webhook_deliveries, webhooks
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
