"""Queries on tasks: their rows, states and versions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, null, select, union_all, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.base.sql import Statement, any_of, given, in_state
from scheduler_svc.base.states import LIVE, TaskState
from scheduler_svc.base.tables import deleted_tasks, tasks, tenants

SPECS_KEPT = 4096
"""Maximum number of parsed specs in the cache."""

_specs: dict[str, tuple[dict[str, Any], TaskSpec]] = {}
"""Cache of parsed specs: task → stored spec, and the `TaskSpec` parsed from it."""


@dataclass(frozen=True)
class Home:
    """Replica at which a task samples or trains, in a pool with several named replicas."""

    replica: str
    version: int
    """First version of the task at which `replica` applies."""
    before: str | None
    """Replica for older versions; None: any replica of the pool."""
    since_s: float
    """NATS time at which the home was chosen, in Unix seconds."""

    def at(self, version: int) -> str | None:
        """Replica for `version`; None: any replica of the pool."""
        return self.replica if version >= self.version else self.before


@dataclass(frozen=True)
class Task:
    """A row of `tasks`."""

    id: str
    tenant: str
    weight: float
    """Weight of the task's tenant, which sets its share of every queue."""
    spec: TaskSpec
    submission: str
    """Digest of the spec as submitted."""
    by_operator: bool
    """Whether an operator submitted the task, not a tenant's key."""
    family: str | None
    state: TaskState
    reason: str
    version: int
    admitted: int
    voided: int
    failures_in_a_row: int
    virtual_time: float
    warnings: dict[str, str]
    """Active warnings: sentences by name (`training/decisions/endings.py`)."""
    start: AdapterRef | None
    """Adapter of version 0 after a warm start; None without one."""
    package: BlobRef | None
    """Package of the task's environment; None for an environment of the operator."""
    expired: frozenset[str]
    """Kinds of the task's data that the tenant's retention has deleted (`tenancy/decisions/expiry.py`)."""
    adapter: AdapterRef | None
    checkpoint: BlobRef | None
    submitted_at: datetime
    accepted_at: datetime | None
    """Time at which the task first ran; None before."""
    homes: Mapping[str, Home]
    """Home by service; empty before the first is chosen, and in pools without several named replicas."""

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


TASK_COLUMNS = (tasks, select(tenants.c.weight).where(tenants.c.id == tasks.c.tenant).scalar_subquery().label("weight"))
"""Columns that `task_of` reads."""


def accepted_spec(task: str, stored: dict[str, Any]) -> TaskSpec:
    """Spec of the task as accepted. Validation takes 35 µs and admission reads every running task, so the last `SPECS_KEPT` are cached."""
    kept = _specs.get(task)
    if kept is not None and kept[0] == stored:  # an operator may change the stored spec
        return kept[1]
    spec = TaskSpec.model_validate(stored)
    if len(_specs) >= SPECS_KEPT:
        _specs.pop(next(iter(_specs)))
    _specs[task] = (stored, spec)
    return spec


def homes_of(stored: dict[str, dict[str, Any]] | None) -> dict[str, Home]:
    """Homes by service, parsed from `stored`, the column `tasks.homes`."""
    return {service: Home(**home) for service, home in stored.items()} if stored else {}


_AS_STORED = (
    "id", "tenant", "weight", "submission", "by_operator", "family", "reason", "version", "admitted", "voided", "failures_in_a_row",
    "virtual_time", "warnings", "submitted_at", "accepted_at",
)  # fmt: skip
_REFERENCES = {"start": AdapterRef, "package": BlobRef, "adapter": AdapterRef, "checkpoint": BlobRef}


def task_of(row: Any) -> Task:
    stored = {name: getattr(row, name) for name in _AS_STORED}
    stored |= {name: from_json(kind, value) if (value := getattr(row, name)) else None for name, kind in _REFERENCES.items()}
    spec, state = accepted_spec(row.id, row.spec), TaskState(row.state)
    return Task(**stored, spec=spec, state=state, expired=frozenset(row.expired), homes=homes_of(row.homes))


async def add_task(
    connection: AsyncConnection,
    task: str,
    spec: TaskSpec,
    start: AdapterRef | None = None,
    *,
    submission: str,
    package: BlobRef | None = None,
    ceiling: int | None = None,
    by_operator: bool = True,
) -> bool:
    """Insert a submitted task; False if the id is taken.

    `start`: adapter of its version 0. `submission`, `by_operator`, `package`: see `Task`. `ceiling`: maximum priority.
    """
    await connection.execute(insert(tenants).values(id=spec.tenant).on_conflict_do_nothing())
    row = {
        "id": task,
        "tenant": spec.tenant,
        "name": spec.name,
        "pool": spec.pool,
        "spec": as_json(spec),
        "submission": submission,
        "by_operator": by_operator,
        "state": TaskState.SUBMITTED,
        "priority": spec.priority if ceiling is None else min(spec.priority, ceiling),
        "steps": spec.steps,
        "group_size": spec.algorithm.group_size,
        "groups_per_step": spec.algorithm.groups_per_step,
        "max_staleness": spec.algorithm.max_staleness,
        "trajectory_tokens": spec.trajectory_tokens,
        "start": as_json(start) if start else null(),
        "package": as_json(package) if package else null(),
    }
    statement = insert(tasks).values(row).on_conflict_do_nothing().returning(tasks.c.id)
    return (await connection.execute(statement)).first() is not None


_STARTED = Statement(
    select(tasks.c.start["blob"].label("blob")).where(tasks.c.spec["start"]["task"].astext == any_of("ids"), tasks.c.start.is_not(None))
)


async def started_from(connection: AsyncConnection, ids: Collection[str]) -> dict[str, BlobRef]:
    """Adapter blobs of tasks `ids` from which other tasks started, by blob name."""
    found = [from_json(BlobRef, row.blob) for row in await _STARTED.run(connection, {"ids": list(ids)})]
    return {ref.name: ref for ref in found}


_FIND = Statement(select(*TASK_COLUMNS).where(tasks.c.id == given("of_task")))


async def find_task(connection: AsyncConnection, task: str) -> Task | None:
    rows = await _FIND.run(connection, {"of_task": task})
    return task_of(rows[0]) if rows else None


async def live_tasks(connection: AsyncConnection) -> set[str]:
    """Ids of the tasks that have not ended."""
    return set((await connection.execute(select(tasks.c.id).where(tasks.c.state.in_(LIVE)))).scalars())


async def tenants_of(connection: AsyncConnection, ids: Collection[str]) -> dict[str, str]:
    """Tenant by task, for existing tasks among `ids`."""
    rows = (await connection.execute(select(tasks.c.id, tasks.c.tenant).where(tasks.c.id.in_(ids)))).all()
    return {row.id: row.tenant for row in rows}


async def ended_after(connection: AsyncConnection, moment: datetime, *, most: int) -> dict[str, datetime]:
    """End times by task, of the first `most` tasks that ended after `moment`, and of others that ended at the same time as the last."""
    latest = select(tasks.c.ended_at).where(tasks.c.ended_at > moment).order_by(tasks.c.ended_at).limit(most).subquery()
    until = select(func.max(latest.c.ended_at)).scalar_subquery()
    statement = select(tasks.c.id, tasks.c.ended_at).where(tasks.c.ended_at > moment, tasks.c.ended_at <= until)
    return {row.id: row.ended_at for row in (await connection.execute(statement)).all()}


async def all_tasks(connection: AsyncConnection) -> set[str]:
    """Ids of all tasks that are not deleted."""
    return set((await connection.execute(select(tasks.c.id))).scalars())


_LOCK = Statement(select(*TASK_COLUMNS).where(tasks.c.id == any_of("ids")).order_by(tasks.c.id).with_for_update(of=tasks))


async def lock_tasks(connection: AsyncConnection, ids: Collection[str]) -> list[Task]:
    """Lock the tasks until the transaction ends, ordered by id; a task's lock also protects its groups. Returns the locked tasks."""
    return [task_of(row) for row in await _LOCK.run(connection, {"ids": sorted(ids)})]


_LOCK_OWN = Statement(
    select(*TASK_COLUMNS).where(tasks.c.id == given("of_task"), tasks.c.tenant == given("of_tenant")).with_for_update(of=tasks)
)


async def lock_own_task(connection: AsyncConnection, tenant: str, task: str) -> Task | None:
    """Lock the tenant's task; None if the tenant has no such task. Another tenant's task is not locked."""
    rows = await _LOCK_OWN.run(connection, {"of_task": task, "of_tenant": tenant})
    return task_of(rows[0]) if rows else None


async def is_others(connection: AsyncConnection, tenant: str, task: str) -> bool:
    """Whether another tenant has, or had, a task with this id."""
    found = [select(table.c.id).where(table.c.id == task, table.c.tenant != tenant) for table in (tasks, deleted_tasks)]
    return (await connection.execute(union_all(*found))).first() is not None


async def lock_running_tasks(connection: AsyncConnection) -> list[Task]:
    statement = select(*TASK_COLUMNS).where(tasks.c.state == TaskState.RUNNING).order_by(tasks.c.id).with_for_update(of=tasks)
    return [task_of(row) for row in (await connection.execute(statement)).all()]


_SUBMITTED = in_state(tasks.c.state, TaskState.SUBMITTED)


async def tasks_waiting_for_an_environment(connection: AsyncConnection, *, most: int) -> set[str]:
    """Submitted tasks for which to request an environment check: up to `most`, less those in progress, per tenant and environment."""
    place = func.row_number().over(
        partition_by=(tasks.c.tenant, tasks.c.spec["environment"]["name"].astext),
        order_by=(tasks.c.family.is_(None), tasks.c.submitted_at, tasks.c.id),
    )
    ranked = select(tasks.c.id, tasks.c.family, place.label("place")).where(_SUBMITTED).subquery()
    statement = select(ranked.c.id).where(ranked.c.family.is_(None), ranked.c.place <= most)
    return set((await connection.execute(statement)).scalars())


async def lock_unchecked(connection: AsyncConnection, tenant: str, *, most: int) -> list[Task]:
    """Lock the tenant's oldest tasks without a requested check, skipping those that another transaction has locked."""
    waiting = select(*TASK_COLUMNS).where(tasks.c.tenant == tenant, tasks.c.family.is_(None), _SUBMITTED)
    statement = waiting.order_by(tasks.c.submitted_at, tasks.c.id).limit(most).with_for_update(of=tasks, skip_locked=True)
    return [task_of(row) for row in (await connection.execute(statement)).all()]


async def checks_requested(connection: AsyncConnection, tenant: str, family: str) -> int:
    """Number of the tenant's tasks with a check pending at this environment family."""
    statement = select(func.count()).select_from(tasks).where(tasks.c.tenant == tenant, tasks.c.family == family, _SUBMITTED)
    return (await connection.execute(statement)).scalar_one()


async def change(connection: AsyncConnection, task: str, **values: Any) -> None:
    """Update columns of a locked task other than its state. `Any`: column values."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(values))


async def transition_task(
    connection: AsyncConnection, task: str, leaving: Sequence[TaskState], to: TaskState, *, reason: str = "", over_budget: bool = False
) -> bool:
    """Change a task's state; False if the task is in none of the states in `leaving`. `over_budget`: its tenant's budget pauses it."""
    values: dict[str, Any] = {"state": to, "reason": reason, "over_budget": over_budget, "updated_at": func.now()}
    if to not in LIVE:
        values["ended_at"] = func.now()
    if to == TaskState.RUNNING:
        values["accepted_at"] = func.coalesce(tasks.c.accepted_at, func.now())
    statement = update(tasks).where(tasks.c.id == task, tasks.c.state.in_(leaving)).values(values).returning(tasks.c.id)
    return (await connection.execute(statement)).first() is not None


async def count_voided(connection: AsyncConnection, task: str, groups: int, *, failures_in_a_row: int | None = None) -> None:
    """Refund `groups` voided groups to the pace of a locked task; `failures_in_a_row`: new value, None leaves it unchanged."""
    values: dict[str, object] = {"voided": tasks.c.voided + groups}
    if failures_in_a_row is not None:
        values["failures_in_a_row"] = failures_in_a_row
    await connection.execute(update(tasks).where(tasks.c.id == task).values(values))
