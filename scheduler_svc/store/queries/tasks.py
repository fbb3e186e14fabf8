"""Sentences about tasks and tenants."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Double, Integer, Text, func, literal, null, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import AdapterRef, BlobRef, as_json, from_json
from common.spec import TaskSpec
from scheduler_svc.decisions.fair_share import TaskShare, TenantShare
from scheduler_svc.store.queries.sql.parameters import Rows, all_of, any_of, given, in_state
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.states import LIVE, EvaluationGroupState, EvaluationState, TaskState
from scheduler_svc.store.tables import MAY_ADMIT, allowance_of, evaluation_groups, evaluations, tasks, tenants

LEARNED_SHARE = 0.25
"""Of the difference between what a task's groups were expected to take and what the latest ones took."""


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
    warnings: dict[str, str]
    """That stand about the task: sentences by name (`decisions/task_warnings.py`)."""
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


@dataclass(frozen=True)
class Candidates:
    """Tasks that may admit groups, and their tenants by id."""

    tasks: list[TaskShare]
    tenants: dict[str, TenantShare]

    def __add__(self, other: "Candidates") -> "Candidates":
        return Candidates(self.tasks + other.tasks, self.tenants | other.tenants)


class Waiting(NamedTuple):
    """What there is to admit."""

    groups: bool
    """A running task's pace allows more."""
    evaluations: bool
    """An evaluation has groups that were not opened yet."""


@dataclass(frozen=True)
class Charge:
    """Tokens to add to what a task and its tenant have consumed."""

    task: str
    tenant: str
    tokens: float
    admitted: int = 0
    """Groups whose admission this is."""


def _claim(task: Any, tenant: Any, allowance: ColumnElement[int]) -> list[ColumnElement[Any]]:
    """The columns of a claim. `Any`: columns of a table or of a subquery."""
    reserved = task.group_size * task.trajectory_tokens
    expected = func.coalesce(task.group_tokens, reserved)
    own = [task.id, task.tenant, task.pool, task.priority, task.virtual_time, task.group_size]
    return [
        *own,
        allowance.label("allowance"),
        reserved.label("reserved"),
        expected.label("expected"),
        tenant.weight,
        tenant.virtual_time.label("tenant_time"),
    ]


def _task(row: Any) -> Task:
    return Task(
        id=row.id,
        tenant=row.tenant,
        spec=TaskSpec.model_validate(row.spec),
        family=row.family,
        state=TaskState(row.state),
        reason=row.reason,
        version=row.version,
        admitted=row.admitted,
        voided=row.voided,
        failures_in_a_row=row.failures_in_a_row,
        virtual_time=row.virtual_time,
        warnings=row.warnings,
        start=from_json(AdapterRef, row.start) if row.start else None,
        adapter=from_json(AdapterRef, row.adapter) if row.adapter else None,
        checkpoint=from_json(BlobRef, row.checkpoint) if row.checkpoint else None,
        submitted_at=row.submitted_at,
        accepted_at=row.accepted_at,
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


async def started_from(connection: AsyncConnection, task: str) -> dict[str, BlobRef]:
    """The task's adapters that other tasks started from, by name."""
    statement = select(tasks.c.start["blob"]).where(tasks.c.spec["start"]["task"].astext == task, tasks.c.start.is_not(None))
    found = [from_json(BlobRef, blob) for blob in (await connection.execute(statement)).scalars()]
    return {ref.name: ref for ref in found}


async def find_task(connection: AsyncConnection, task: str) -> Task | None:
    row = (await connection.execute(select(tasks).where(tasks.c.id == task))).first()
    return _task(row) if row else None


async def live_tasks(connection: AsyncConnection) -> set[str]:
    """Ids of the tasks that have not ended."""
    return set((await connection.execute(select(tasks.c.id).where(tasks.c.state.in_(LIVE)))).scalars())


async def tenants_of(connection: AsyncConnection, ids: Collection[str]) -> dict[str, str]:
    """The tenant of each of these tasks."""
    rows = (await connection.execute(select(tasks.c.id, tasks.c.tenant).where(tasks.c.id.in_(ids)))).all()
    return {row.id: row.tenant for row in rows}


async def all_tasks(connection: AsyncConnection) -> set[str]:
    """Ids of every task that is not deleted."""
    return set((await connection.execute(select(tasks.c.id))).scalars())


_LOCK = Statement(select(tasks).where(tasks.c.id == any_of("ids")).order_by(tasks.c.id).with_for_update())


async def lock_tasks(connection: AsyncConnection, ids: Collection[str]) -> list[Task]:
    """The tasks, locked until the transaction ends, and with them their groups."""
    return [_task(row) for row in await _LOCK.run(connection, {"ids": sorted(ids)})]


async def lock_running_tasks(connection: AsyncConnection) -> list[Task]:
    statement = select(tasks).where(tasks.c.state == TaskState.RUNNING).order_by(tasks.c.id).with_for_update()
    return [_task(row) for row in (await connection.execute(statement)).all()]


async def tasks_waiting_for_an_environment(connection: AsyncConnection) -> set[str]:
    """Submitted tasks whose environment's family is not known yet."""
    statement = select(tasks.c.id).where(tasks.c.state == TaskState.SUBMITTED, tasks.c.family.is_(None))
    return set((await connection.execute(statement)).scalars())


async def set_warnings(connection: AsyncConnection, task: str, warnings: Mapping[str, str]) -> None:
    """Of a locked task, all that stand from now on."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(warnings=dict(warnings)))


async def set_family(connection: AsyncConnection, task: str, family: str) -> None:
    await connection.execute(update(tasks).where(tasks.c.id == task).values(family=family, reason=""))


async def forget_family(connection: AsyncConnection, task: str) -> None:
    """Its environment is to be found and checked again."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(family=None))


async def set_reason(connection: AsyncConnection, task: str, reason: str) -> None:
    await connection.execute(update(tasks).where(tasks.c.id == task).values(reason=reason))


async def transition_task(
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


_ADVANCE = Statement(
    update(tasks)
    .where(
        tasks.c.id == given("of_task"),
        tasks.c.version == given("from_version"),
        in_state(tasks.c.state, TaskState.RUNNING, TaskState.PAUSED),
    )
    .values(version=tasks.c.version + 1, adapter=given("made_adapter"), checkpoint=given("made_checkpoint"), updated_at=func.now())
    .returning(tasks)
)


async def advance_version(connection: AsyncConnection, task: str, version: int, adapter: AdapterRef, checkpoint: BlobRef) -> Task | None:
    """Compare-and-set from `version` to the next; the task as that leaves it, locked, or None when it is elsewhere or has ended."""
    made = {"made_adapter": as_json(adapter), "made_checkpoint": as_json(checkpoint)}
    advanced = await _ADVANCE.run(connection, {"of_task": task, "from_version": version, **made})
    return _task(advanced[0]) if advanced else None


async def count_voided(connection: AsyncConnection, task: str, groups: int, *, failures_in_a_row: int | None = None) -> None:
    """Refund `groups` of the pace of a locked task; None: its failures in a row stay as they are."""
    values: dict[str, object] = {"voided": tasks.c.voided + groups}
    if failures_in_a_row is not None:
        values["failures_in_a_row"] = failures_in_a_row
    await connection.execute(update(tasks).where(tasks.c.id == task).values(values))


async def now(connection: AsyncConnection) -> datetime:
    """PostgreSQL's time, by which tasks are accepted."""
    return (await connection.execute(select(func.now()))).scalar_one()


async def reset_failure_streak(connection: AsyncConnection, ids: Collection[str]) -> None:
    """A group of each of these tasks succeeded, though it is not trained."""
    await connection.execute(update(tasks).where(tasks.c.id.in_(ids), tasks.c.failures_in_a_row > 0).values(failures_in_a_row=0))


_success = Rows("success", task=Text, tokens=Double)
_NOTE_SUCCESS = Statement(
    update(tasks)
    .where(tasks.c.id == _success.c.task)
    .values(
        failures_in_a_row=0,
        group_tokens=func.coalesce(
            tasks.c.group_tokens + (_success.c.tokens - tasks.c.group_tokens) * literal(LEARNED_SHARE, Double), _success.c.tokens
        ),
    )
)


async def update_token_estimate(connection: AsyncConnection, group_tokens: Mapping[str, float]) -> None:
    """Groups of these tasks became ready and took so many tokens, in the mean: what the next is expected to take follows slowly."""
    await _NOTE_SUCCESS.run(connection, _success.of(list(group_tokens.items())))


_WHO_WAITS = Statement(
    select(
        select(tasks.c.id).where(MAY_ADMIT).exists(),
        select(evaluation_groups.c.number).where(in_state(evaluation_groups.c.state, EvaluationGroupState.PLANNED)).exists(),
    ).where(func.pg_try_advisory_xact_lock(given("lock", Integer)))
)


async def has_admissible_work(connection: AsyncConnection, *, lock: int) -> Waiting | None:
    """Whether there is anything to admit, of any pool: mostly there is not, and nothing else needs to be asked.

    Takes the advisory `lock` until the transaction ends; None where another has it.
    """
    found = await _WHO_WAITS.run(connection, {"lock": lock})
    return Waiting(*found[0]) if found else None


_may_open = (MAY_ADMIT, tasks.c.pool == any_of("pools"), tasks.c.tenant != all_of("but_tenants"), tasks.c.id != all_of("but_tasks"))
_least_served = (
    select(tenants)
    .where(select(tasks.c.id).where(tasks.c.tenant == tenants.c.id, *_may_open).exists())
    .order_by(tenants.c.virtual_time, tenants.c.id)
    .limit(given("most", Integer))
    .subquery("least_served")
)
_waiting = (
    select(tasks)
    .where(tasks.c.tenant == _least_served.c.id, *_may_open)
    .order_by(tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id)
    .limit(given("most", Integer))
    .lateral("waiting")
)
_NEXT_IN_LINE = Statement(
    select(*_claim(_waiting.c, _least_served.c, allowance_of(_waiting.c))).select_from(_least_served.join(_waiting, true()))
)


async def least_served_tasks(
    connection: AsyncConnection, pools: Collection[str], *, most: int, but_tenants: Collection[str] = (), but_tasks: Collection[str] = ()
) -> Candidates:
    """The tasks that could be given any of the next `most` groups: of the `most` least-served tenants, each one's `most` next tasks.

    Only tasks whose pace allows more, of these pools, and none of those left out; in the order of virtual times, from indexes, so
    that it takes about as long for ten tasks as for thousands.
    """
    but = {"but_tenants": sorted(but_tenants), "but_tasks": sorted(but_tasks)}
    return _claims(await _NEXT_IN_LINE.run(connection, {"pools": sorted(pools), "most": most} | but))


_planned = (evaluation_groups.c.task == tasks.c.id, in_state(evaluation_groups.c.state, EvaluationGroupState.PLANNED))
_planned_groups = select(func.count()).select_from(evaluation_groups).where(*_planned).scalar_subquery()
_planned_size = select(evaluation_groups.c.size).where(*_planned).limit(1).scalar_subquery()
_EVALUATIONS_IN_LINE = Statement(
    select(*_claim(tasks.c, tenants.c, _planned_groups), _planned_size.label("size"))  # pyright: ignore[reportArgumentType]
    .select_from(tasks.join(tenants, tasks.c.tenant == tenants.c.id))
    .where(
        tasks.c.id.in_(select(evaluations.c.task).where(in_state(evaluations.c.state, EvaluationState.RUNNING))),
        tasks.c.state == TaskState.RUNNING,
        tasks.c.pool == any_of("pools"),
        tasks.c.tenant != all_of("but_tenants"),
        tasks.c.id != all_of("but_tasks"),
        select(evaluation_groups.c.number).where(*_planned).exists(),
    )
    .order_by(tenants.c.virtual_time, tenants.c.id, tasks.c.priority.desc(), tasks.c.virtual_time, tasks.c.id)
    .limit(given("most", Integer))
)


async def evaluations_in_line(
    connection: AsyncConnection, pools: Collection[str], *, most: int, but_tenants: Collection[str] = (), but_tasks: Collection[str] = ()
) -> Candidates:
    """The same for groups of evaluations: of `most` running tasks whose evaluations have groups that wait to be opened."""
    but = {"but_tenants": sorted(but_tenants), "but_tasks": sorted(but_tasks)}
    found_rows = await _EVALUATIONS_IN_LINE.run(connection, {"pools": sorted(pools), "most": most} | but)
    found = _claims(found_rows)
    for row, task in zip(found_rows, found.tasks, strict=True):
        task.evaluate(row.size)
    return found


async def candidates_for(connection: AsyncConnection, allowances: dict[str, int], pools: Collection[str]) -> Candidates:
    """These tasks, of these pools, with these allowances."""
    statement = (
        select(*_claim(tasks.c, tenants.c, allowance_of(tasks.c)))
        .select_from(tasks.join(tenants, tasks.c.tenant == tenants.c.id))
        .where(tasks.c.id.in_([task for task, allowance in allowances.items() if allowance > 0]), tasks.c.pool.in_(sorted(pools)))
    )
    found = _claims((await connection.execute(statement)).all())
    for task in found.tasks:
        task.allowance = allowances[task.task]
    return found


def _claims(found_rows: Iterable[Any]) -> Candidates:
    found = Candidates([], {})
    for row in found_rows:
        found.tenants.setdefault(row.tenant, TenantShare(row.tenant, row.weight, row.tenant_time))
        found.tasks.append(
            TaskShare(
                task=row.id,
                tenant=row.tenant,
                pool=row.pool,
                priority=row.priority,
                virtual_time=row.virtual_time,
                allowance=row.allowance,
                group_size=row.group_size,
                group_tokens=float(row.expected),
                reserved_tokens=float(row.reserved),
            )
        )
    return found


_charged_task = Rows("charged_task", id=Text, tokens=Double, admitted=Integer)
_CHARGE_TASKS = Statement(
    update(tasks)
    .where(tasks.c.id == _charged_task.c.id)
    .values(virtual_time=tasks.c.virtual_time + _charged_task.c.tokens, admitted=tasks.c.admitted + _charged_task.c.admitted)
)
_charged = Rows("charged", id=Text, tokens=Double)
# In order, before the update takes them in any; and as an update locks them: rows of the ledger that name a tenant, written by
# others, must not stand in the way.
_charged_tenants = select(tenants.c.id).where(tenants.c.id == any_of("charged_id")).order_by(tenants.c.id)
_locked = _charged_tenants.with_for_update(key_share=True).cte("locked")
_CHARGE_TENANTS = Statement(
    update(tenants)
    .where(tenants.c.id == _locked.c.id, tenants.c.id == _charged.c.id)
    .values(virtual_time=tenants.c.virtual_time + _charged.c.tokens / tenants.c.weight)
)


async def charge(connection: AsyncConnection, charges: Collection[Charge]) -> None:
    """Add tokens (negative: take them off) to the virtual times of tasks, which are locked, and of their tenants; and to the tasks'
    counts of admitted groups what is admitted with it."""
    if not charges:
        return
    by_task: defaultdict[str, list[Charge]] = defaultdict(list)
    by_tenant: defaultdict[str, float] = defaultdict(float)
    for one in charges:
        by_task[one.task].append(one)
        by_tenant[one.tenant] += one.tokens
    rows = [(task, sum((one.tokens for one in found), 0.0), sum(one.admitted for one in found)) for task, found in by_task.items()]
    await _CHARGE_TASKS.run(connection, _charged_task.of(rows))
    await _CHARGE_TENANTS.run(connection, _charged.of(list(by_tenant.items())))


@dataclass(frozen=True)
class VirtualTimes:
    """Of the others among whom a tenant or a task takes its place."""

    active: list[float]
    """Of those that run."""
    past: float
    """The largest of all."""


async def virtual_times(connection: AsyncConnection, task: str, tenant: str) -> tuple[VirtualTimes, VirtualTimes]:
    """Of other tenants, and of the tenant's other tasks that are not over."""
    running = tasks.c.state == TaskState.RUNNING
    runs = select(tasks.c.id).where(tasks.c.tenant == tenants.c.id, running).exists()
    others = select(tenants.c.virtual_time, runs.label("runs")).where(tenants.c.id != tenant)
    siblings = select(tasks.c.virtual_time, running.label("runs")).where(
        tasks.c.tenant == tenant, tasks.c.id != task, tasks.c.state.in_((TaskState.RUNNING, TaskState.PAUSED))
    )
    tenant_rows, task_rows = (await connection.execute(others)).all(), (await connection.execute(siblings)).all()
    return _virtual_times(tenant_rows), _virtual_times(task_rows)


def _virtual_times(rows: Sequence[Any]) -> VirtualTimes:
    return VirtualTimes([row.virtual_time for row in rows if row.runs], max((row.virtual_time for row in rows), default=0.0))


async def start_shares(connection: AsyncConnection, task: str, tenant: str, *, task_time: float, tenant_time: float) -> None:
    """Raise both virtual times to where an active one begins; never lower them."""
    await connection.execute(update(tasks).where(tasks.c.id == task).values(virtual_time=func.greatest(tasks.c.virtual_time, task_time)))
    await connection.execute(
        update(tenants).where(tenants.c.id == tenant).values(virtual_time=func.greatest(tenants.c.virtual_time, tenant_time))
    )
