"""Dead letters, adapters of versions, and live environments."""

from dataclasses import dataclass

from sqlalchemy import CTE, Text, case, func, literal_column, or_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, FailedMessage, ReplicaReport, from_json
from scheduler_svc.base.sql import Statement, given, in_state
from scheduler_svc.base.states import StepState
from scheduler_svc.base.tables import dead_letters, replicas, steps, stored_blobs, tasks

ALIVE = text("interval '15 seconds'")
"""Age of a replica's last report below which it counts as alive, as in the view `stage_health`."""
_SENDER = literal_column("split_part(dead_letters.subject, '.', 3)", Text)
"""Sender of a job's dead letter, in the words of the index."""


async def failures(connection: AsyncConnection, tenant: str | None, task: str | None, *, after: int, most: int) -> list[FailedMessage]:
    """At most so many dead letters above number `after`, by number: about the tenant's tasks, and jobs under its name.

    A job's letter names no task, and its subject the tenant: `jobs.<verb>.<tenant>`.
    """
    letters = dead_letters if tenant is None else _letters_of(tenant)
    sender = case((letters.c.subject.startswith("jobs."), func.split_part(letters.c.subject, ".", 3)))
    owner = func.coalesce(tasks.c.tenant, case((letters.c.task.is_(None), func.nullif(sender, "")))).label("owner")
    statement = (
        select(letters, owner)
        .select_from(letters.outerjoin(tasks, tasks.c.id == letters.c.task))
        .where(letters.c.sequence > after)
        .order_by(letters.c.sequence)
        .limit(most)
    )
    if task is not None:
        statement = statement.where(letters.c.task == task)
    return [
        FailedMessage(
            letter=row.sequence,
            tenant=row.owner,
            task=row.task,
            stage=row.stage,
            subject=row.subject,
            reason=row.reason,
            attempts=row.attempts,
        )
        for row in (await connection.execute(statement)).all()
    ]


def _letters_of(tenant: str) -> CTE:
    """Read before they are sorted: in the order of their numbers, PostgreSQL would read those of all tenants."""
    of_tasks = select(dead_letters).where(dead_letters.c.task.in_(select(tasks.c.id).where(tasks.c.tenant == tenant)))
    of_jobs = select(dead_letters).where(dead_letters.c.task.is_(None), _SENDER.in_([tenant]), dead_letters.c.subject.startswith("jobs."))
    return union_all(of_tasks, of_jobs).cte("letters").prefix_with("MATERIALIZED")


@dataclass(frozen=True)
class Adapters:
    """What there is of a task's adapters."""

    version: int
    """The task's version."""
    adapter: AdapterRef | None
    """Of the requested version; None when no step made it."""
    is_stored: bool
    stored: list[int]
    """Versions whose adapters are stored."""


_wanted = func.coalesce(given("wanted_version"), tasks.c.version)
_made = (
    select(steps.c.adapter)
    .where(steps.c.task == tasks.c.id, steps.c.version == _wanted - 1, in_state(steps.c.state, StepState.TRAINED))
    .scalar_subquery()
    .label("made")
)
_stored = (
    select(func.array_agg(stored_blobs.c.version.distinct()))
    .where(stored_blobs.c.task == tasks.c.id, stored_blobs.c.kind == "adapter")
    .scalar_subquery()
    .label("stored")
)
_is_tenants = or_(given("of_tenant", Text).is_(None), tasks.c.tenant == given("of_tenant", Text))
_ADAPTERS = Statement(select(tasks.c.version, _made, _stored).where(tasks.c.id == given("of_task"), _is_tenants))


async def adapters(connection: AsyncConnection, tenant: str | None, task: str, version: int | None) -> Adapters | None:
    """None when the tenant has no such task. `version`: None for the latest."""
    found = await _ADAPTERS.run(connection, {"of_tenant": tenant, "of_task": task, "wanted_version": version})
    if not found:
        return None
    adapter = from_json(AdapterRef, found[0].made) if found[0].made else None
    stored: list[int] = sorted(found[0].stored or [])
    return Adapters(found[0].version, adapter, adapter is not None and adapter.version in stored, stored)


async def live_environment_services(connection: AsyncConnection) -> list[ReplicaReport]:
    """Last reports of the environment service's replicas that are alive."""
    statement = select(replicas.c.report).where(replicas.c.service == "env", replicas.c.seen_at > func.now() - ALIVE)
    return [from_json(ReplicaReport, report) for report in (await connection.execute(statement.order_by(replicas.c.id))).scalars()]
