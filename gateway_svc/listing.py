"""Listing of tasks: filters, order and pages."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from common.messages import TaskStatus
from gateway_svc.problems import FieldError, invalid

Sort = Literal["submitted", "-submitted", "name", "-name", "reward", "-reward", "updated", "-updated"]
MAX_LISTED = 20_000
"""Maximum tasks that are read for one listing."""


@dataclass(frozen=True)
class Filter:
    """What a listing shows; None: all."""

    state: tuple[str, ...] = ()
    pool: str | None = None
    name: str | None = None
    text: str | None = None
    """Part of the id, the name or the reason, in any case of letters."""

    def shows(self, status: TaskStatus) -> bool:
        return (
            (not self.state or status.state in self.state)
            and self.pool in (None, status.pool)
            and self.name in (None, status.name)
            and (self.text is None or self.text.lower() in f"{status.task}\n{status.name}\n{status.reason}".lower())
        )


def page_of(found: Iterable[TaskStatus], sort: Sort, after: str | None, limit: int) -> tuple[list[TaskStatus], str | None]:
    """One page, and the cursor of the next. `after`: cursor of this one. Raises: Problem for a cursor of another listing.

    A cursor is the place of its page's last task, so a task that comes or goes moves no other from one page to another.
    """
    backwards = sort.startswith("-")
    ordered = sorted(found, key=lambda status: _place(status, sort), reverse=backwards)
    if after is not None:
        place = _read_cursor(after, sort)
        ordered = [one for one in ordered if (_place(one, sort) < place if backwards else _place(one, sort) > place)]
    kept = ordered[:limit]
    return kept, _cursor(kept[-1], sort) if len(ordered) > limit else None


def _place(status: TaskStatus, sort: Sort) -> tuple[float, str, str]:
    """Numbers and texts, of which each order uses one, and the id where these are equal."""
    match sort.removeprefix("-"):
        case "name":
            return 0.0, status.name, status.task
        case "reward":
            return -1e300 if status.reward is None else status.reward, "", status.task
        case "updated":
            return status.updated_s, "", status.task
        case _:
            return status.submitted_s, "", status.task


def _cursor(last: TaskStatus, sort: Sort) -> str:
    return base64.urlsafe_b64encode(json.dumps([sort, *_place(last, sort)]).encode()).decode().rstrip("=")


def _read_cursor(cursor: str, sort: Sort) -> tuple[float, str, str]:
    try:
        match json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))):
            case [of, int() | float() as number, str() as name, str() as task] if of == sort:
                return float(number), name, task
            case _:
                pass
    except ValueError:
        pass
    raise invalid(FieldError("cursor", "it is no cursor of this listing; begin without one"))
