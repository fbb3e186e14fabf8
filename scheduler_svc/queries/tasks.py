"""Sentences about tasks and tenants."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, case, func, null, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.fairness import TenantShare
from scheduler_svc.states import LIVE, TaskState
from scheduler_svc.tables import tasks, tenants


@dataclass(frozen=True)
class Task:
    """A row of `tasks`."""

    id: str
    tenant: str
    spec: TaskSpec
    family: str | None
    state: TaskState
    reason: str
    version: int
    admitted: int
    voided: int
    failures_in_a_row: int
    virtual_time: float
    start: AdapterRef | None
    """Of version 0, where that is another task's."""
    adapter: AdapterRef | None
    checkpoint: BlobRef | None
    submitted_at: datetime
    accepted_at: datetime | None
    """None until the task first runs."""

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


def _task(row: RowMapping) -> Task:
    return Task(
        id=row["id"],
        tenant=row["tenant"],
        spec=TaskSpec.model_validate(row["spec"]),
        family=row["family"],
        state=TaskState(row["state"]),
        reason=row["reason"],
        version=row["version"],
        admitted=row["admitted"],
        voided=row["voided"],
        failures_in_a_row=row["failures_in_a_row"],
        virtual_time=row["virtual_time"],
        start=from_json(AdapterRef, row["start"]) if row["start"] else None,
        adapter=from_json(AdapterRef, row["adapter"]) if row["adapter"] else None,
        checkpoint=from_json(BlobRef, row["checkpoint"]) if row["checkpoint"] else None,
        submitted_at=row["submitted_at"],
        accepted_at=row["accepted_at"],
    )


async def add_task(connection: AsyncConnection, task: str, spec: TaskSpec, start: AdapterRef | None = None) -> bool:
    """Write a submitted task; False when the id is taken. `start`: the adapter of its version 0."""
    await connection.execute(insert(tenants).values(id=spec.tenant).on_conflict_do_nothing())
    row = {
        "id": task,
        "tenant": spec.tenant,
        "name": spec.name,
        "pool": spec.pool,
        "spec": as_json(spec),
        "state": TaskState.SUBMITTED,
        "priority": spec.priority,
        "steps": spec.steps,
        "group_size": spec.algorithm.group_size,
        "groups_per_step": spec.algorithm.groups_per_step,
        "max_staleness": spec.algorithm.max_staleness,
        "trajectory_tokens": spec.trajectory_tokens,
        "start": as_json(start) if start else null(),
    }
    statement = insert(tasks).values(row).on_conflict_do_nothing().returning(tasks.c.id)
    return (await connection.execute(statement)).first() is not None


async def started_from(connection: AsyncConnection, task: str) -> set[str]:
    """Names of the task's adapters that other tasks started from."""
    statement = select(tasks.c.start["blob"]["name"].astext).where(tasks.c.spec["start"]["task"].astext == task, tasks.c.start.is_not(None))
    return set((await connection.execute(statement)).scalars())


async def find_task(connection: AsyncConnection, task: str) -> Task | None:
    row = (await connection.execute(select(tasks).where(tasks.c.id == task))).mappings().first()
    return _task(row) if row else None


async def live_tasks(connection: AsyncConnection) -> set[str]:
    """Ids of the tasks that have not ended."""
    return set((await connection.execute(select(tasks.c.id).where(tasks.c.state.in_(LIVE)))).scalars())


async def lock_tasks(connection: AsyncConnection, ids: Collection[str]) -> list[Task]:
    """The tasks, locked until the transaction ends."""
    statement = select(tasks).where(tasks.c.id.in_(sorted(ids))).order_by(tasks.c.id).with_for_update()
    return [_task(row) for row in (await connection.execute(statement)).mappings()]


async def lock_running_tasks(connection: AsyncConnection) -> list[Task]:
    statement = select(tasks).where(tasks.c.state == TaskState.RUNNING).order_by(tasks.c.id).with_for_update()
    return [_task(row) for row in (await connection.execute(statement)).mappings()]


async def tasks_waiting_for_an_environment(connection: AsyncConnection) -> list[Task]:
    """Submitted tasks whose environment's family is not known yet, locked."""
    statement = select(tasks).where(tasks.c.state == TaskState.SUBMITTED, tasks.c.family.is_(None)).order_by(tasks.c.id).with_for_update()
    return [_task(row) for row in (await connection.execute(statement)).mappings()]


async def set_family(connection: AsyncConnection, task: str, family: str) -> None:
    await connection.execute(update(tasks).where(tasks.c.id == task).values(family=family, reason=""))


async def set_reason(connection: AsyncConnection, task: str, reason: str) -> None:
    await connection.execute(update(tasks).where(tasks.c.id == task).values(reason=reason))


async def move_task(
    connection: AsyncConnection, task: str, leaving: Sequence[TaskState], to: TaskState, *, reason: str = "", tenant: str | None = None
) -> bool:
    """Change a task's state; False when it is not in one of the states to leave, or not the tenant's."""
    values: dict[str, Any] = {"state": to, "reason": reason, "updated_at": func.now()}
    if to not in LIVE:
        values["ended_at"] = func.now()
    if to == TaskState.RUNNING:
        values["accepted_at"] = func.coalesce(tasks.c.accepted_at, func.now())
    statement = update(tasks).where(tasks.c.id == task, tasks.c.state.in_(leaving)).values(values).returning(tasks.c.id)
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    return (await connection.execute(statement)).first() is not None


async def advance_version(connection: AsyncConnection, task: str, version: int, adapter: AdapterRef, checkpoint: BlobRef) -> bool:
    """Compare-and-set from `version` to the next; False when the task is elsewhere or has ended."""
    statement = (
        update(tasks)
        .where(tasks.c.id == task, tasks.c.version == version, tasks.c.state.in_((TaskState.RUNNING, TaskState.PAUSED)))
        .values(version=version + 1, adapter=as_json(adapter), checkpoint=as_json(checkpoint), updated_at=func.now())
        .returning(tasks.c.id)
    )
    return (await connection.execute(statement)).first() is not None


async def count_voided(connection: AsyncConnection, task: str, groups: int, *, failures: int) -> None:
    """Refund `groups` of the task's pace, `failures` of them failed."""
    in_a_row = tasks.c.failures_in_a_row + failures
    await connection.execute(update(tasks).where(tasks.c.id == task).values(voided=tasks.c.voided + groups, failures_in_a_row=in_a_row))


async def forget_failures(connection: AsyncConnection, ids: Collection[str]) -> None:
    """A group of each of these tasks became ready."""
    await connection.execute(update(tasks).where(tasks.c.id.in_(ids), tasks.c.failures_in_a_row > 0).values(failures_in_a_row=0))


async def count_admitted(connection: AsyncConnection, admitted: dict[str, int], virtual_times: dict[str, float]) -> None:
    """Raise each task's count of admitted groups and set its virtual time."""
    if not admitted:
        return
    statement = (
        update(tasks)
        .where(tasks.c.id.in_(list(admitted)))
        .values(
            admitted=tasks.c.admitted + case(admitted, value=tasks.c.id),
            virtual_time=case({task: virtual_times[task] for task in admitted}, value=tasks.c.id),
        )
    )
    await connection.execute(statement)


async def correct_charge(connection: AsyncConnection, task: str, tenant: str, tokens: float) -> None:
    """Add what a group consumed beyond its charge (negative: less) to both virtual times."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(virtual_time=tasks.c.virtual_time + tokens))
    await connection.execute(
        update(tenants).where(tenants.c.id == tenant).values(virtual_time=tenants.c.virtual_time + tokens / tenants.c.weight)
    )


async def lock_tenants(connection: AsyncConnection, ids: Collection[str]) -> dict[str, TenantShare]:
    statement = select(tenants).where(tenants.c.id.in_(sorted(ids))).order_by(tenants.c.id).with_for_update()
    rows = (await connection.execute(statement)).mappings()
    return {row["id"]: TenantShare(row["id"], row["weight"], row["virtual_time"]) for row in rows}


async def set_virtual_times(connection: AsyncConnection, shares: Collection[TenantShare]) -> None:
    if shares:
        by_id = {share.tenant: share.virtual_time for share in shares}
        await connection.execute(update(tenants).where(tenants.c.id.in_(list(by_id))).values(virtual_time=case(by_id, value=tenants.c.id)))


async def active_virtual_times(connection: AsyncConnection, task: str, tenant: str) -> tuple[list[float], list[float]]:
    """Virtual times of other tenants with running tasks, and of the tenant's other running tasks."""
    running = tasks.c.state == TaskState.RUNNING
    others = select(tenants.c.virtual_time).where(
        tenants.c.id != tenant, select(tasks.c.id).where(tasks.c.tenant == tenants.c.id, running).exists()
    )
    siblings = select(tasks.c.virtual_time).where(tasks.c.tenant == tenant, tasks.c.id != task, running)
    return list((await connection.execute(others)).scalars()), list((await connection.execute(siblings)).scalars())


async def start_shares(connection: AsyncConnection, task: str, tenant: str, *, task_time: float, tenant_time: float) -> None:
    """Raise both virtual times to where an active one begins; never lower them."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(virtual_time=func.greatest(tasks.c.virtual_time, task_time)))
    await connection.execute(
        update(tenants).where(tenants.c.id == tenant).values(virtual_time=func.greatest(tenants.c.virtual_time, tenant_time))
    )
