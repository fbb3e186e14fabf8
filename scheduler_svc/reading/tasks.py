"""Answers about tasks: statuses, built from the rows with the same fields as in the key-value bucket `tasks`, and why a task waits.

Pages are ordered by a sort key and the id. A cursor contains the last task's key and id, not an offset, so inserted and deleted tasks
do not shift later pages.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, and_, case, cast, func, literal, or_, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from common.bus import FullStream
from common.errors import Reject, Retry
from common.messages import AdapterRef, AskTask, AskTasks, StatusAnswer, TasksAnswer, TaskStatus, WhyAnswer, from_json
from common.messages.asks import TaskOrder
from common.task_states import ENDED
from scheduler_svc.base.sql import any_of, in_state
from scheduler_svc.base.states import GroupState, StepState, VoidReason
from scheduler_svc.base.tables import NUMBERED_IN_TRAINING, dead_letters, groups, steps, tasks
from scheduler_svc.reading.deployment import seen_by
from scheduler_svc.tenancy.question import Question, Sources, page
from scheduler_svc.training.queries.progress import LATEST_GROUPS, end_of_task, latest_trained_at
from scheduler_svc.training.waiting import why

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_reward = (
    select(steps.c.reward)
    .where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.TRAINED))
    .order_by(steps.c.version.desc())
    .limit(1)
    .scalar_subquery()
)

_KEYS: dict[TaskOrder, ColumnElement[Any]] = {
    "id": tasks.c.id,
    "created": tasks.c.submitted_at,
    "reward": func.coalesce(_reward, cast(literal("-infinity"), Double)),
    "state": tasks.c.state,
}


async def answer_tasks(question: Question, request: AskTasks) -> TasksAnswer:
    """A page of statuses. Raises: Reject if the cursor belongs to another sort order."""
    async with question.reading() as connection:
        found = await _statuses(connection, question.tenant, request)
    kept, has_more = page([one.status for one in found], request.most)
    return TasksAnswer(tasks=kept, cursor=found[len(kept) - 1].cursor if has_more else None)


async def answer_status(question: Question, request: AskTask) -> StatusAnswer:
    """The task's status. Raises: Unknown."""
    async with question.reading() as connection:
        found = await status_of(connection, question.tenant, request.task)
    if found is None:
        raise question.unknown(request.task)
    return StatusAnswer(status=found)


@dataclass(frozen=True)
class Listed:
    """A task of a listing, and the cursor after it."""

    status: TaskStatus
    cursor: str


async def _statuses(connection: AsyncConnection, tenant: str | None, asked: AskTasks) -> list[Listed]:
    """Up to `asked.most` statuses in the requested order. Raises: Reject if the cursor belongs to another sort order."""
    listed = (await connection.execute(listing(tenant, asked))).all()
    of_page = _STATUS.where(tasks.c.id == any_of("of_page"))
    rows = {row.id: row for row in (await connection.execute(of_page, {"of_page": [one.id for one in listed]})).all()}
    return [Listed(_status(rows[one.id]), cursor_of(asked.sort, one.key, one.id)) for one in listed]


async def status_of(connection: AsyncConnection, tenant: str | None, task: str) -> TaskStatus | None:
    """The task's status; None if the tenant has no such task, even if another tenant does. `tenant`: None for any."""
    statement = _STATUS.where(tasks.c.id == task)
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    return _status(row) if row else None


def _status_statement() -> Select[Any]:
    trained = (
        select(steps.c.reward, steps.c.staleness_mean)
        .where(steps.c.task == tasks.c.id, in_state(steps.c.state, StepState.TRAINED))
        .order_by(steps.c.version.desc())
        .limit(1)
        .lateral("trained")
    )
    latest = (
        select(groups.c.state, groups.c.void_reason)
        .where(groups.c.task == tasks.c.id, NUMBERED_IN_TRAINING)
        .order_by(groups.c.number.desc())
        .limit(LATEST_GROUPS)
        .correlate(tasks)
        .subquery("latest")
        .lateral()
    )
    failed = and_(latest.c.void_reason.is_not(None), in_state(latest.c.void_reason, VoidReason.FAILED, VoidReason.DEADLINE))
    scored = in_state(latest.c.state, GroupState.READY, GroupState.BATCHED, GroupState.TRAINED)
    ended = select(func.count(case((failed, 1))).label("failed"), func.count(case((or_(failed, scored), 1))).label("ended"))
    shares = ended.select_from(latest).lateral("shares")
    letters = select(func.count()).where(dead_letters.c.task == tasks.c.id).scalar_subquery().label("letters")
    ends = latest_trained_at(tasks.c.id).label("ends")
    rows = tasks.outerjoin(trained, true()).outerjoin(shares, true())
    return select(tasks, trained.c.reward, trained.c.staleness_mean, shares.c.failed, shares.c.ended, letters, ends).select_from(rows)


_STATUS = _status_statement()


def _status(row: Any) -> TaskStatus:
    return TaskStatus(
        tenant=row.tenant,
        task=row.id,
        name=row.name,
        pool=row.pool,
        state=row.state,
        reason=row.reason,
        version=row.version,
        steps=row.steps,
        reward=row.reward,
        staleness=row.staleness_mean,
        sampled_tokens=row.sampled_tokens,
        failed_share=row.failed / row.ended if row.ended else None,
        dead_letters=row.letters,
        adapter=from_json(AdapterRef, row.adapter) if row.adapter else None,
        warnings=row.warnings,
        expected_end_s=end_of_task(row.state, row.ends, row.steps - row.version),
        submitted_s=row.submitted_at.timestamp(),
        updated_s=row.updated_at.timestamp(),
    )


def listing(tenant: str | None, asked: AskTasks) -> Select[Any, Any]:
    """Statement for the ids and keys of one page. Raises: Reject if the cursor belongs to another sort order."""
    key = _KEYS[asked.sort]
    order = tuple_(key, tasks.c.id)
    statement = select(tasks.c.id, key.label("key")).where(*_conditions(tenant, asked)).limit(asked.most)
    if asked.cursor is not None:
        last = tuple_(*_last(asked.sort, asked.cursor, key.type))
        statement = statement.where(order < last if asked.descending else order > last)
    return statement.order_by(*(one.desc() if asked.descending else one for one in (key, tasks.c.id)))


def cursor_of(order: TaskOrder, key: Any, task: str) -> str:
    """The cursor after this task. `key`: the task's sort key."""
    if order == "id":
        return task
    text = str((key - EPOCH) // timedelta(microseconds=1)) if order == "created" else repr(key) if order == "reward" else key
    return f"{text}~{task}"


def _last(order: TaskOrder, cursor: str, kind: TypeEngine[Any]) -> Sequence[ColumnElement[Any]]:
    text, _, task = cursor.rpartition("~")
    if bool(text) == (order == "id"):
        raise Reject(f"cursor: it is not one of a listing by '{order}'")
    try:
        key = {
            "id": lambda: task,
            "created": lambda: EPOCH + timedelta(microseconds=int(text)),
            "reward": lambda: float(text),
            "state": lambda: text,
        }[order]()
    except (ValueError, OverflowError):
        raise Reject(f"cursor: it is not one of a listing by '{order}'") from None
    return literal(key, kind), literal(task)


def _conditions(tenant: str | None, asked: AskTasks) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if tenant is not None:
        found.append(tasks.c.tenant == tenant)
    if asked.states:
        found.append(tasks.c.state.in_(asked.states))
    if asked.pool is not None:
        found.append(tasks.c.pool == asked.pool)
    if asked.name is not None:
        found.append(tasks.c.name == asked.name)
    if asked.text is not None:
        part = func.lower(asked.text)
        found.append(or_(func.strpos(func.lower(tasks.c.id), part) > 0, func.strpos(func.lower(tasks.c.name), part) > 0))
    return found


NOTHING = "nothing holds it: its next group or step is about to leave"

LOOK_S = 1.0
"""Maximum seconds to check the streams."""


async def answer_why(question: Question, request: AskTask) -> WhyAnswer:
    """Why the task waits. Raises: Unknown."""
    sources, full = question.sources, await _full_streams(question.sources)
    async with question.reading() as connection:
        try:
            shared = {name for name, pool in sources.pools.items() if pool.samplers_on or pool.trainers_on}
            seen = [one for one in map(partial(seen_by, question.tenant), sources.troubles()) if one is not None]
            capacities = sources.capacities()
            cause = await why(connection, question.tenant, request.task, sources.replicas(), capacities, full, shared=shared, troubles=seen)
        except LookupError:  # the task has ended, or is unknown
            status = await status_of(connection, question.tenant, request.task)
            if status is None or status.state not in ENDED:
                raise question.unknown(request.task) from None
            return WhyAnswer(task=request.task, cause=None, number=None, sentence=f"it is {status.state}: it waits for nothing")
    if cause is None:
        return WhyAnswer(task=request.task, cause=None, number=None, sentence=NOTHING)
    return WhyAnswer(task=request.task, cause=cause.kind.value, number=cause.number, sentence=cause.sentence)


async def _full_streams(sources: Sources) -> Sequence[FullStream]:
    """Streams without room; empty if JetStream does not answer in LOOK_S, since the rest of the answer does not need it."""
    try:
        async with asyncio.timeout(LOOK_S):
            return await sources.full_streams()
    except (Retry, TimeoutError):
        return ()
