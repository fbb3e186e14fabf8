"""Questions: the route of each verb of `ask.<tenant>.<verb>`, and the answer as NATS has it."""

import base64
import json
import math
import sys
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.messages import (
    AskAdapter,
    AskAliases,
    AskAudit,
    AskEvaluations,
    AskEvents,
    AskExecutors,
    AskFailures,
    AskFiles,
    AskInvoice,
    AskSamples,
    AskSlices,
    AskSteps,
    AskTask,
    AskTasks,
    AskVersions,
    AskWebhooks,
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
    """The answer about what there is not; None: an error."""
    chosen: Callable[[Any, Json], Json] = lambda _, found: found
    """What the request wants of the answer's JSON, where the route gives more."""


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
    return _about(asked.task, "/steps"), _given(after=asked.after, every=asked.every)


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


def _executors(asked: AskExecutors) -> tuple[str, Params]:
    return "/v1/executors", _given(pool=asked.pool)


def _slices(asked: AskSlices) -> tuple[str, Params]:
    params = _given(since=asked.since_s, before=asked.before, accelerator=asked.accelerator, limit=asked.most)
    return "/v1/slices", params


def _audit(asked: AskAudit) -> tuple[str, Params]:
    return "/v1/audit", _given(since=asked.since and asked.since.isoformat(), cursor=asked.cursor)


def _samples(asked: AskSamples) -> tuple[str, Params]:
    return _about(asked.task, "/samples"), _given(step=asked.step)


def _file(asked: AskFiles) -> tuple[str, Params]:
    """Raises: ValueError for a list, whose pages `HttpFiles` reads: a route's page begins behind an id."""
    if asked.file is None:
        raise ValueError("a list of files has a route of its own")
    return f"/v1/files/{asked.file}", []


def file_of(found: Json) -> Json:
    """JSON of a `StoredFile`, from that of a file in OpenAI's shape."""
    more = found["marlaas"]
    same = {name: more[name] for name in ("number", "tenant", "kept_bytes", "state", "rows", "live_tasks")}
    named = {"file": found["id"], "name": found["filename"], "size_bytes": found["bytes"]}
    return {**same, **named, "reason": found["status_details"] or "", "uploaded_s": more["uploaded_at"]}


def alias_of(found: Json) -> Json:
    """JSON of an `AliasOf`."""
    return {**found, "changed_s": found["changed_at"]}


def _webhook_of(found: Json) -> Json:
    sent = [{**one, "created_s": one["created_at"], "next_s": one["next_at"]} for one in found["deliveries"]]
    return {**found, "changed_s": found["changed_at"], "deliveries": sent}


def _named(asked: AskAliases | AskWebhooks, listed: str, found: Json) -> Json:
    """Routes list all; of one name an admin may want those of every tenant."""
    return {**found, listed: [one for one in found[listed] if asked.name in (None, one["name"])]}


def _samples_of(found: Json) -> Json:
    """JSON of a `SamplesAnswer`: the conversations, back as the tokens that they are made of."""
    if found["step"] is None:
        return {"task": found["task"], "steps": found["steps"], "samples": None}
    same = {name: found[name] for name in ("tenant", "task", "pool", "left_out")}
    attempts = [{**one, **_tokens_of(one["tokens"])} for one in found["data"]]
    return {"task": found["task"], "steps": found["steps"], "samples": {**same, "version": found["step"], "attempts": attempts}}


def _tokens_of(found: Json) -> Json:
    sampled = found["sampled"]
    tokens = {
        "ids": _in_bytes("i", found["ids"]),
        "logprobs": _in_bytes("f", _numbers(found["sampler_logprobs"], sampled)),
        "sampled": _in_bytes("B", [int(one) for one in sampled]),
    }
    return {"tokens": tokens, "trainer_logprobs": _in_bytes("f", _numbers(found["trainer_logprobs"], sampled))}


def _numbers(values: list[float | None], sampled: list[bool]) -> list[float]:
    """Null means 0 where the token was not sampled, and a number that is not finite where it was."""
    return [value if value is not None else math.nan if is_sampled else 0.0 for value, is_sampled in zip(values, sampled, strict=True)]


def _in_bytes(kind: str, values: list[Any]) -> str:
    """Little-endian numbers in base64."""
    packed = array(kind, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


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
    "executors": Question(_executors),
    "slices": Question(_slices),
    "invoice": Question(_invoice),
    "prices": Question(_always("/v1/prices")),
    "budgets": Question(_always("/v1/budgets")),
    "audit": Question(_audit),
    "samples": Question(_samples, _samples_of),
    "files": Question(_file, lambda found: {"files": [file_of(found)], "has_more": False}, absent={"files": [], "has_more": False}),
    "aliases": Question(
        _always("/v1/aliases"),
        lambda found: {"aliases": [alias_of(one) for one in found["data"]], "cursor": None},
        chosen=lambda asked, found: _named(asked, "aliases", found),
    ),
    "webhooks": Question(
        _always("/v1/webhooks"),
        lambda found: {"webhooks": [_webhook_of(one) for one in found["data"]], "cursor": None},
        chosen=lambda asked, found: _named(asked, "webhooks", found),
    ),
}
