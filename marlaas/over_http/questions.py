"""Questions: the route of each verb of `ask.<tenant>.<verb>`, and the answer as NATS has it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.messages import (
    AskAdapter,
    AskAudit,
    AskEvaluations,
    AskEvents,
    AskFailures,
    AskInvoice,
    AskSteps,
    AskTask,
    AskTasks,
    AskVersions,
    Event,
    Message,
    TaskStatus,
    from_json,
)

Params = list[tuple[str, str]]
Json = Any
"""JSON of an answer, which the message's own model checks."""


@dataclass(frozen=True)
class Question:
    route: Callable[[Any], tuple[str, Params]]
    """Of the request: path and parameters."""
    answer: Callable[[Json], Json] = lambda found: found
    """JSON of the message, from that of the route."""
    absent: Json | None = None
    """The answer about a task that there is not; None: an error."""


def task_status(found: Json) -> Json:
    """JSON of a `TaskStatus`, from that of a task."""
    return {**found, "task": found["id"], "submitted_s": found["submitted_at"], "updated_s": found["updated_at"]}


def event_of(found: Json) -> Event:
    return from_json(Event, {**found, "at_s": found["at"]})


def read_status(body: bytes) -> TaskStatus:
    return from_json(TaskStatus, task_status(json.loads(body)))


def _given(**params: object) -> Params:
    return [(name, str(value)) for name, value in params.items() if value is not None]


def _about(task: str, what: str = "") -> str:
    return f"/v1/tasks/{task}{what}"


def _tasks(asked: AskTasks) -> tuple[str, Params]:
    params = _given(pool=asked.pool, name=asked.name, text=asked.text, cursor=asked.cursor, limit=asked.most)
    sort = f"{'-' if asked.descending else ''}{asked.sort}"
    return "/v1/tasks", [*params, ("sort", sort), *(("state", state) for state in asked.states)]


def _detail(asked: AskTask) -> tuple[str, Params]:
    return _about(asked.task), []


def _events(asked: AskEvents) -> tuple[str, Params]:
    return _about(asked.task, "/events"), _given(after=asked.after)


def _steps(asked: AskSteps) -> tuple[str, Params]:
    return _about(asked.task, "/steps"), _given(after=asked.after)


def _versions(asked: AskVersions) -> tuple[str, Params]:
    return _about(asked.task, "/versions"), _given(after=asked.after)


def _evaluations(asked: AskEvaluations) -> tuple[str, Params]:
    return _about(asked.task, "/evaluations"), _given(version=asked.version, protocol=asked.protocol)


def _failures(asked: AskFailures) -> tuple[str, Params]:
    return ("/v1/failures" if asked.task is None else _about(asked.task, "/failures")), _given(after=asked.after)


def _adapter(asked: AskAdapter) -> tuple[str, Params]:
    return _about(asked.task, f"/versions/{'latest' if asked.version is None else asked.version}"), []


def _invoice(asked: AskInvoice) -> tuple[str, Params]:
    return "/v1/invoice", _given(first=asked.first, last=asked.last, cursor=asked.cursor)


def _audit(asked: AskAudit) -> tuple[str, Params]:
    return "/v1/audit", _given(since=asked.since and asked.since.isoformat(), cursor=asked.cursor)


def _always(path: str) -> Callable[[Message], tuple[str, Params]]:
    return lambda _: (path, [])


QUESTIONS: dict[str, Question] = {
    "tasks": Question(_tasks, lambda found: {"tasks": [task_status(one) for one in found["data"]], "cursor": found["next_cursor"]}),
    "status": Question(_detail, lambda found: {"status": task_status(found)}),
    "spec": Question(_detail, lambda found: {"task": found["id"], "spec": found["spec"]}),
    "why": Question(_detail, lambda found: {"task": found["id"], **found["why"]}),
    "events": Question(
        _events,
        lambda found: {"events": [{**one, "at_s": one["at"]} for one in found["data"]], "last": found["last"]},
        absent={"events": [], "last": 0},
    ),
    "steps": Question(_steps),
    "versions": Question(_versions),
    "evaluations": Question(_evaluations),
    "failures": Question(_failures, lambda found: {"failures": found["data"], "has_more": found["has_more"]}),
    "adapter": Question(_adapter, lambda found: {"adapter": found}),
    "usage": Question(_always("/v1/usage"), lambda found: {**found, "cursor": None}),
    "envs": Question(_always("/v1/environments")),
    "pools": Question(_always("/v1/pools")),
    "replicas": Question(_always("/v1/replicas")),
    "invoice": Question(_invoice),
    "prices": Question(_always("/v1/prices")),
    "budgets": Question(_always("/v1/budgets")),
    "audit": Question(_audit),
}
