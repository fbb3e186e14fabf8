"""Failures of inference, and clients that go, with OpenAI's own client."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, cast

import httpx
import openai
import pytest

from common.client_api.asking import Door
from common.messages.serving import Failure, ServedSampling
from gateway_svc.access import Caller
from gateway_svc.http.event_stream import Ends, Sse
from gateway_svc.http.gateway import Drain
from gateway_svc.http.openai_family import SamplingStream, error_event
from gateway_svc.openai.errors import failed_sampling
from gateway_svc.openai.sampling.choices import Choice, Prompt, Target, sampled
from tests.gateway.openai.clients import Opened
from tests.support.gateway.deltas import HELLO, WORDS, Source, deltas, failing
from tests.support.waiting import eventually

FAILURES: list[tuple[Failure, int, type[openai.APIStatusError]]] = [
    ("invalid", 400, openai.BadRequestError),
    ("context_length_exceeded", 400, openai.BadRequestError),
    ("version_unusable", 409, openai.ConflictError),
    ("overdue", 503, openai.InternalServerError),
    ("engine_lost", 503, openai.InternalServerError),
    ("internal", 500, openai.InternalServerError),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status", "kind"), FAILURES)
async def test_a_failure_before_the_first_token_is_a_status(
    opened: Opened, failure: Failure, status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    async with opened(Source(lambda _: failing(failure))) as client:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO, stream=stream)

    assert caught.value.status_code == status
    assert caught.value.code == (failure if failure != "invalid" else "invalid_value")
    assert ("retry-after" in caught.value.response.headers) == (status == 503)


async def test_a_failure_names_the_field_that_it_is_about(opened: Opened) -> None:
    async with opened(Source(lambda _: failing("context_length_exceeded"))) as client:
        with pytest.raises(openai.BadRequestError) as of_chat:
            await client.chat.completions.create(model="tiny", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as of_text:
            await client.completions.create(model="tiny", prompt="a")
        with pytest.raises(openai.BadRequestError) as of_responses:
            await client.responses.create(model="tiny", input="a")

    assert [of_chat.value.param, of_text.value.param, of_responses.value.param] == ["messages", "prompt", "input"]
    assert failed_sampling("invalid", "logit_bias: 999 is no token's id", "prompt").errors[0].field == "logit_bias"
    assert not failed_sampling("invalid", "a prompt has at least one token: none", "prompt").errors


async def test_a_conflict_is_not_repeated_by_the_client(opened: Opened) -> None:
    source = Source(lambda _: failing("version_unusable"))
    async with opened(source) as client:
        with pytest.raises(openai.ConflictError):
            await client.with_options(max_retries=2).chat.completions.create(model="tiny", messages=HELLO)

    assert len(source.choices) == 1


async def test_a_failure_in_a_stream_is_raised_by_the_client_and_ends_the_other_choices(opened: Opened) -> None:
    numbers = iter(range(2))
    source = Source(lambda _: failing("engine_lost", WORDS) if next(numbers) == 0 else None)
    async with opened(source) as client:
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True, n=2)
        seen = []
        with pytest.raises(openai.APIError) as caught:
            async for chunk in stream:
                seen.append(chunk)
        await eventually(lambda: not source.open)

    assert caught.value.code == "engine_lost"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in seen) == "Hello wörld 🙂"


async def test_a_failure_in_a_streamed_response_is_its_last_event(opened: Opened) -> None:
    async with opened(Source(lambda _: failing("engine_lost", WORDS))) as client:
        events = [event async for event in await client.responses.create(model="tiny", input="x", stream=True)]

    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert (last.response.status, last.response.error.code, last.response.output_text) == ("failed", "server_error", "Hello wörld 🙂")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat/completions", "completions", "responses"])
async def test_a_client_that_goes_before_the_first_token_ends_the_request(opened: Opened, route: str, stream: bool) -> None:
    source = Source(lambda _: None)
    body = {"model": "tiny", "stream": stream} | {
        "chat/completions": {"messages": HELLO, "n": 2}, "completions": {"prompt": "x"}, "responses": {"input": "x"},
    }[route]  # fmt: skip
    async with opened(source) as client:
        await _begin_and_go(client.base_url, route, body, source.begun)
        await eventually(lambda: not source.open)


@pytest.mark.parametrize("route", ["chat/completions", "responses"])
async def test_a_client_that_goes_in_the_middle_ends_the_request(opened: Opened, route: str) -> None:
    source = Source(lambda _: deltas(WORDS), hold_after=2)
    body = {"model": "tiny", "stream": True} | ({"messages": HELLO} if route == "chat/completions" else {"input": "x"})
    async with opened(source) as client:
        async with httpx.AsyncClient(timeout=60) as plain:
            url = f"{client.base_url}{route}?tenant=acme"
            async with plain.stream("POST", url, json=body) as response:
                async for line in response.aiter_lines():
                    if "lo" in line and "delta" in line:
                        break
                assert source.open
        await eventually(lambda: not source.open)


async def _begin_and_go(base: httpx.URL, route: str, body: dict[str, Any], begun: asyncio.Event) -> None:
    """A socket that is closed once the source has the request, before a byte of the answer."""
    reader, writer = await asyncio.open_connection(base.host, base.port)
    encoded = json.dumps(body).encode()
    head = f"POST {base.path}{route}?tenant=acme HTTP/1.1\r\nHost: {base.host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(encoded)}\r\n\r\n".encode() + encoded)
    await writer.drain()
    async with asyncio.timeout(30):
        await begun.wait()
    assert not reader.at_eof()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_sampling_ends_where_its_stream_never_begins() -> None:
    """The client goes between the first token and the first byte: no generator of the stream has run then."""
    source = Source(lambda _: deltas(WORDS), hold_after=1)
    choice, target = Choice(Prompt(text="x"), ServedSampling(seed=1)), Target("tiny", "acme", "tiny", None)
    sampling = sampled(source, [choice], target, request="r", key=None)
    await anext(sampling)

    async def events() -> AsyncGenerator[Sse]:
        yield Sse("never")

    async def refuse(_: object) -> None:
        raise OSError("the client has gone")

    door = cast(Door, None)
    ends = Ends(Caller(door, "acme", "member", ""), Drain(), is_resumable=False)
    with pytest.raises(OSError, match="gone"):
        await SamplingStream(sampling, events(), ends, error=error_event, headers={})({"type": "http"}, asyncio.Event().wait, refuse)

    assert source.open == set()
