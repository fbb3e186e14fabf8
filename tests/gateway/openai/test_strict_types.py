"""Answers are what the client's own types say, strictly. The client builds its models without checking, so the bytes are read here.

A row for each method of the client that the gateway has; both clients, with and without asyncio, run all rows in their order.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pytest
from openai import AsyncOpenAI, OpenAI
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from gateway_svc.http.application import described
from gateway_svc.http.routes import fine_tuning, inference
from tests.gateway.openai.clients import Opened
from tests.gateway.openai.fine_tuning import SMALL
from tests.support.gateway.deltas import HELLO, TOOLS, Part, Source, call, deltas
from tests.support.scheduler.stages import World, spec

FLAT_TOOLS: Any = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}]
USAGE: Any = {"include_usage": True}
LOGPROBS: Any = ["message.output_text.logprobs"]
JOB: Any = {"model": "tiny", "training_file": "env:toy", "method": {"type": "reinforcement"}, "extra_body": {"marlaas": SMALL}}


def as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True)
class Row:
    method: str
    """Of the client, such as `chat.completions.create`."""
    kind: Any
    """Of the answer, or of one event of a stream."""
    arguments: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    """What stands for a path's parameter."""
    known: Callable[[Any], Any] = as_it_is
    """The answer without what the client's types are known not to have."""

    @property
    def is_streamed(self) -> bool:
        return bool(self.arguments.get("stream"))

    def __str__(self) -> str:
        return f"{self.method} {self.arguments}"


def without_pauses(job: Any) -> Any:
    """`paused` is no status of the client's type."""
    if job.get("status") == "paused":
        job["status"] = "queued"
    return job


def without_open_ends(chunk: Any) -> Any:
    """As with OpenAI, a chunk of a completion before a choice's last has no reason; the client has no type for chunks."""
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    return chunk


ROWS = [
    Row("models.list", SyncPage[Model]),
    Row("models.retrieve", Model, place="sums-1@latest"),
    Row("models.retrieve", Model, place="tiny"),
    *(
        Row(method, kind, {"model": "sums-1@best", **arguments, **more}, known=known)
        for method, whole, event, arguments, variants, known in (
            ("chat.completions.create", ChatCompletion, ChatCompletionChunk, {"messages": HELLO}, [
                {}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"tools": TOOLS}, {"metadata": {"a": "b"}},
            ], as_it_is),
            ("completions.create", Completion, Completion, {"prompt": "x"}, [{}, {"n": 2}, {"logprobs": 1}, {"prompt": [1, 2]}],
             without_open_ends),
            ("responses.create", Response, ResponseStreamEvent, {"input": "x"}, [
                {}, {"instructions": "Add."}, {"tools": FLAT_TOOLS}, {"metadata": {"a": "b"}},
                {"include": LOGPROBS, "top_logprobs": 2}, {"input": [{"role": "user", "content": "x"}]}, {"max_output_tokens": 9},
            ], as_it_is),
        )
        for variant in variants
        for kind, more in ((whole, variant), (event, variant | {"stream": True}))
    ),
    *(Row(f"{name}.create", kind, {"model": "tiny", "stream": True, "stream_options": USAGE, **more}, known=known)
      for name, kind, more, known in (
        ("chat.completions", ChatCompletionChunk, {"messages": HELLO}, as_it_is),
        ("completions", Completion, {"prompt": "x"}, without_open_ends),
      )),
    Row("fine_tuning.jobs.create", FineTuningJob, JOB | {"suffix": "new", "seed": 3, "metadata": {"team": "a"}}),
    Row("fine_tuning.jobs.list", SyncCursorPage[FineTuningJob]),
    Row("fine_tuning.jobs.list", SyncCursorPage[FineTuningJob], {"limit": 1, "metadata": {"team": "a"}}),
    Row("fine_tuning.jobs.retrieve", FineTuningJob, place="sums-1"),
    Row("fine_tuning.jobs.retrieve", FineTuningJob, place="refused"),
    Row("fine_tuning.jobs.list_events", SyncCursorPage[FineTuningJobEvent], place="sums-1"),
    Row("fine_tuning.jobs.list_events", SyncCursorPage[FineTuningJobEvent], {"limit": 2}, place="sums-1"),
    Row("fine_tuning.jobs.checkpoints.list", SyncCursorPage[FineTuningJobCheckpoint], {"limit": 2}, place="sums-1"),
    Row("fine_tuning.jobs.pause", FineTuningJob, place="slow-1", known=without_pauses),
    Row("fine_tuning.jobs.resume", FineTuningJob, place="slow-1"),
    Row("fine_tuning.jobs.cancel", FineTuningJob, place="slow-1"),
]  # fmt: skip
METHODS = {
    ("GET", "/v1/models"): "models.list",
    ("GET", "/v1/models/{model}"): "models.retrieve",
    ("POST", "/v1/chat/completions"): "chat.completions.create",
    ("POST", "/v1/completions"): "completions.create",
    ("POST", "/v1/responses"): "responses.create",
    ("POST", "/v1/fine_tuning/jobs"): "fine_tuning.jobs.create",
    ("GET", "/v1/fine_tuning/jobs"): "fine_tuning.jobs.list",
    ("GET", "/v1/fine_tuning/jobs/{job}"): "fine_tuning.jobs.retrieve",
    ("GET", "/v1/fine_tuning/jobs/{job}/events"): "fine_tuning.jobs.list_events",
    ("GET", "/v1/fine_tuning/jobs/{job}/checkpoints"): "fine_tuning.jobs.checkpoints.list",
    ("POST", "/v1/fine_tuning/jobs/{job}/cancel"): "fine_tuning.jobs.cancel",
    ("POST", "/v1/fine_tuning/jobs/{job}/pause"): "fine_tuning.jobs.pause",
    ("POST", "/v1/fine_tuning/jobs/{job}/resume"): "fine_tuning.jobs.resume",
}
"""Route → method of the client that asks it."""


def test_every_route_of_openais_has_a_method_with_a_row() -> None:
    documented = described([inference.FAMILY, fine_tuning.FAMILY]).openapi()["paths"]

    assert {(method.upper(), path) for path, operations in documented.items() for method in operations} == set(METHODS)
    assert {row.method for row in ROWS} == set(METHODS.values())
    streamed = {row.method for row in ROWS if row.is_streamed}
    assert streamed == {"chat.completions.create", "completions.create", "responses.create"}


def check(row: Row, body: str) -> None:
    """Raises: pydantic's error for what the client's type does not permit."""
    adapter: TypeAdapter[Any] = TypeAdapter(row.kind)
    for found in events(body) if row.is_streamed else [json.loads(body)]:
        adapter.validate_json(json.dumps(row.known(found)), strict=True)


def events(body: str) -> Iterator[Any]:
    lines = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]
    assert lines
    yield from (json.loads(line) for line in lines if line != "[DONE]")


def method_of(client: OpenAI | AsyncOpenAI, name: str) -> Any:
    *resources, method = name.split(".")
    found: Any = client
    for resource in resources:
        found = getattr(found, resource)
    return getattr(found.with_streaming_response, method)


def reply(_: Any) -> Any:
    parts = [Part(reasoning="hm"), Part("Hel"), Part("lo wörld 🙂", ids=2), Part(calls=[call(1), call(2, "sub")])]
    return deltas(parts, "tool_calls", logprobs=2)


def asked(client: OpenAI, row: Row) -> str:
    with method_of(client, row.method)(*filter(None, [row.place]), **row.arguments) as answer:
        return str(answer.read().decode())


async def asked_with_asyncio(client: AsyncOpenAI, row: Row) -> str:
    async with method_of(client, row.method)(*filter(None, [row.place]), **row.arguments) as answer:
        return str((await answer.read()).decode())


@pytest.fixture
async def tasks(world: World) -> AsyncIterator[World]:
    """One that has finished, one that runs, and one that was rejected."""
    await world.run("sums-1", spec(metadata={"team": "b"}))
    await world.run("refused", until="rejected")
    await world.run("slow-1", spec(name="slow"), until="accepted")
    yield world


@pytest.mark.parametrize("kind", ["asyncio", "threads"])
async def test_every_answer_is_what_the_clients_types_say(tasks: World, opened: Opened, kind: Literal["asyncio", "threads"]) -> None:
    async with opened(Source(reply)) as client:
        query = dict(client.default_query)
        with OpenAI(base_url=client.base_url, api_key="mk-none", default_query=query, max_retries=0) as sync:
            for row in ROWS:
                body = await (asked_with_asyncio(client, row) if kind == "asyncio" else asyncio.to_thread(asked, sync, row))
                try:
                    check(row, body)
                except Exception as error:
                    raise AssertionError(f"{row}: {error}\n{body[:2000]}") from error


def test_what_is_permitted_besides_the_types_is_still_needed() -> None:
    """Where the client learns of them, the exceptions go."""
    assert "paused" not in get_args(FineTuningJob.model_fields["status"].annotation)
