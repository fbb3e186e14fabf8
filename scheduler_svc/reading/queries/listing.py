"""Which tasks are on a page, and in which order: by a key and the id, after those of the page before.

A cursor names the last task and its key, not a number of rows: tasks that come and go elsewhere move nothing.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Double, Select, cast, func, literal, or_, select, tuple_
from sqlalchemy.types import TypeEngine

from common.errors import Reject
from common.messages import AskTasks
from common.messages.asks import TaskOrder
from scheduler_svc.base.sql import in_state
from scheduler_svc.base.states import StepState
from scheduler_svc.base.tables import steps, tasks

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


def listing(tenant: str | None, asked: AskTasks) -> Select[Any, Any]:
    """Statement for the ids and keys of one page. Raises: Reject when the cursor is one of another order."""
    key = _KEYS[asked.sort]
    order = tuple_(key, tasks.c.id)
    statement = select(tasks.c.id, key.label("key")).where(*_conditions(tenant, asked)).limit(asked.most)
    if asked.cursor is not None:
        last = tuple_(*_last(asked.sort, asked.cursor, key.type))
        statement = statement.where(order < last if asked.descending else order > last)
    return statement.order_by(*(one.desc() if asked.descending else one for one in (key, tasks.c.id)))


def cursor_of(order: TaskOrder, key: Any, task: str) -> str:
    """The cursor after this task. `key`: of the type of the order's key."""
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
