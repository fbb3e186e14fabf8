"""Every route of inference with OpenAI's own client, asynchronous and not. A source of made-up tokens is in place of samplers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from common.bus import Bus
from common.client_api.asking import Door
from gateway_svc.access import Caller
from gateway_svc.openai.sampling.choices import id_of
from tests.gateway.openai.clients import Opened
from tests.support.gateway.deltas import FINGERPRINT, HELLO, TOOLS, WORDS, Part, Source, call, deltas
from tests.support.scheduler.stages import World, spec


def _says_hello(choice: Any) -> Any:
    return deltas(WORDS, logprobs=choice.sampling.top_logprobs)


async def test_chat_whole_and_streamed_are_the_same_text(opened: Opened) -> None:
    async with opened(Source(_says_hello)) as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=HELLO, logprobs=True, top_logprobs=2, metadata={"for": "test"}
        )
        whole = ChatCompletion.model_validate_json(raw.text, strict=True)
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content == "Hello wörld 🙂"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (7, 4, 11)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert (whole.model, whole.system_fingerprint, whole.metadata) == ("tiny", FINGERPRINT, {"for": "test"})
    assert raw.headers["x-marlaas-model"] == "tiny"
    assert whole.id == f"chatcmpl-{raw.headers['x-request-id']}"
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content is not None
    assert [len(one.top_logprobs) for one in whole.choices[0].logprobs.content] == [2, 2, 2, 2]


async def test_the_client_without_asyncio(opened: Opened) -> None:
    source = Source(_says_hello)
    async with opened(source) as client:

        def ask() -> tuple[str | None, str, str, str]:
            with OpenAI(base_url=client.base_url, api_key="mk-none", default_query={"tenant": "acme"}, max_retries=0) as sync:
                chat = sync.chat.completions.create(model="tiny", messages=HELLO)
                stream = sync.chat.completions.create(model="tiny", messages=HELLO, stream=True)
                streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                text = sync.completions.create(model="tiny", prompt="x").choices[0].text
                return chat.choices[0].message.content, streamed, text, sync.responses.create(model="tiny", input="x").output_text

        assert set(await asyncio.to_thread(ask)) == {"Hello wörld 🙂"}


async def test_choices_are_requests_with_seeds_of_their_own(opened: Opened) -> None:
    source = Source(_says_hello)
    async with opened(source) as client:
        raw = await client.chat.completions.with_raw_response.create(model="tiny", messages=HELLO, n=3, seed=5)
        await client.chat.completions.create(model="tiny", messages=HELLO, seed=5)
    answer = raw.parse()

    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (21, 12)
    seeds = [choice.sampling.seed for _, choice, _ in source.choices]
    assert len({*seeds}) == 3
    assert seeds[0] == seeds[3] == 5
    assert [request for request, _, _ in source.choices[:3]] == [id_of(raw.headers["x-request-id"], number) for number in range(3)]


async def test_calls_end_with_one_reason_streamed_and_not(opened: Opened) -> None:
    async with opened(Source(lambda _: deltas([Part("Adding."), Part(calls=[call(1), call(2, "sub")])]))) as client:
        whole = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS, stream=True)
        chunks = [chunk async for chunk in stream]

    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "tool_calls"
    assert [one.id for one in whole.choices[0].message.tool_calls or []] == ["call_1", "call_2"]
    streamed = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
    assert [(one.index, one.id, one.function and one.function.name) for one in streamed] == [(0, "call_1", "add"), (1, "call_2", "sub")]


async def test_an_assistants_answer_can_be_sent_back(opened: Opened) -> None:
    source = Source(lambda _: deltas([Part("", calls=[call(1)])]))
    async with opened(source) as client:
        first = (await client.chat.completions.create(model="tiny", messages=HELLO, tools=TOOLS)).choices[0].message
        answers: Any = [*HELLO, first, {"role": "tool", "tool_call_id": "call_1", "content": "4"}]
        await client.chat.completions.create(model="tiny", messages=answers, tools=TOOLS)
        response = await client.responses.create(model="tiny", input="x")
        items: Any = [*response.output, {"type": "function_call_output", "call_id": "call_1", "output": "4"}]
        await client.responses.create(model="tiny", input=items)

    for _, choice, _ in (source.choices[1], source.choices[3]):
        assert [message.role for message in choice.prompt.messages or []][-2:] == ["assistant", "tool"]
        assert [one.id for one in (choice.prompt.messages or [])[-2].tool_calls] == ["call_1"]


async def test_completions_of_texts_and_of_tokens(opened: Opened) -> None:
    source = Source(_says_hello)
    async with opened(source) as client:
        raw = await client.completions.with_raw_response.create(model="tiny", prompt=["a", "b"], n=2, logprobs=1)
        stream = await client.completions.create(model="tiny", prompt=[1, 2, 3], stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    answer = Completion.model_validate_json(raw.text, strict=True)

    assert [choice.text for choice in answer.choices] == ["Hello wörld 🙂"] * 4
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.text_offset == [0, 3, 5, 13]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello wörld 🙂"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4
    assert [(choice.prompt.text, choice.prompt.ids) for _, choice, _ in source.choices] == [
        ("a", None), ("a", None), ("b", None), ("b", None), (None, [1, 2, 3]),
    ]  # fmt: skip


async def test_responses_whole_and_streamed(opened: Opened) -> None:
    parts = [Part(reasoning="2 and 2…"), *WORDS, Part(calls=[call(1)])]
    async with opened(Source(lambda _: deltas(parts))) as client:
        raw = await client.responses.with_raw_response.create(model="tiny", input="2 + 2", instructions="Add.", metadata={"a": "b"})
        whole = Response.model_validate_json(raw.text, strict=True)
        events = [event async for event in await client.responses.create(model="tiny", input="2 + 2", stream=True)]
        async with client.responses.stream(model="tiny", input="2 + 2") as accumulated:
            final = await accumulated.get_final_response()

    assert whole.output_text == final.output_text == "Hello wörld 🙂"
    assert [item.type for item in whole.output] == [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"]
    assert whole.usage is not None
    assert whole.usage.output_tokens == 6
    assert (whole.status, whole.metadata, whole.instructions) == ("completed", {"a": "b"}, "Add.")


async def test_models_are_pools_and_versions_and_answers_name_the_exact_one(world: World, opened: Opened) -> None:
    await world.run("sums-1", spec())
    source = Source(_says_hello)
    async with opened(source) as client:
        names = [model.id async for model in client.models.list()]
        retrieved = await client.models.retrieve("sums-1@latest")
        answers = [
            (await client.chat.completions.create(model=f"sums-1@{version}", messages=HELLO)).model for version in ("latest", "best", "2")
        ]
        stream = await client.chat.completions.create(model="sums-1@latest", messages=HELLO, stream=True)
        streamed = {chunk.model async for chunk in stream}

    assert names == ["tiny", "sums-1@3"]
    assert (retrieved.id, retrieved.owned_by) == ("sums-1@3", "acme")
    assert (answers[0], answers[2], streamed) == ("sums-1@3", "sums-1@2", {"sums-1@3"})
    assert answers[1] == "sums-1@1"  # of equal ones the earliest
    _, _, target = source.choices[2]
    assert target.adapter is not None
    assert (target.tenant, target.pool, target.adapter.version) == ("acme", "tiny", 2)


@pytest.mark.parametrize("name", ["huge", "sums-1", "sums-1@9", "none-1@latest", "sums-1@02", "sums-1@-1", "@", "a/b", "sums-1@best@1"])
async def test_an_absent_model_is_404_and_never_the_base_model(world: World, opened: Opened, name: str) -> None:
    await world.run("sums-1", spec())
    source = Source(_says_hello)
    async with opened(source) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model=name, messages=HELLO)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve(name)

    assert (caught.value.code, caught.value.param, caught.value.type) == ("model_not_found", "model", "invalid_request_error")
    assert source.choices == []


class _OfTenant:
    """Access of a member of one tenant, whose door asks for that tenant's data only."""

    def __init__(self, bus: Bus, tenant: str) -> None:
        self._door = Door(bus, "nats://test", tenant)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        yield Caller(self._door, self._door.tenant, "member", "")


async def test_another_tenants_model_is_as_absent_as_one_that_there_is_not(world: World, opened: Opened) -> None:
    await world.run("sums-1", spec())
    await world.run("other-1", spec("other", "other"))
    async with opened(Source(_says_hello), tenant=None, access=_OfTenant(world.bus, "other")) as client:
        said = []
        for name in ("sums-1@1", "sums-2@1"):
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model=name, messages=HELLO)
            said.append(str(caught.value).replace(name, "NAME"))
        names = [model.id async for model in client.models.list()]

    assert said[0] == said[1]
    assert names == ["tiny", "other-1@3"]


async def test_what_is_not_honoured_is_named(opened: Opened) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": TOOLS}, "tool_choice"),
        ({"store": True}, "store"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content"),
    ]
    source = Source(_says_hello)
    async with opened(source) as client:
        for changes, param in refused:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**({"model": "tiny", "messages": HELLO} | changes))
            assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="tiny", input="x", previous_response_id="resp_1")
        assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "previous_response_id")

    assert source.choices == []


async def test_an_admin_names_who_is_billed_for_a_base_model(opened: Opened) -> None:
    async with opened(Source(_says_hello), tenant=None) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO)
        assert (await client.models.retrieve("tiny")).id == "tiny"

    assert (caught.value.code, caught.value.param) == ("tenant_required", "tenant")


async def test_errors_of_no_route_and_of_no_json_have_openais_shape(opened: Opened) -> None:
    async with opened(Source(_says_hello)) as client, httpx.AsyncClient(base_url=str(client.base_url), timeout=60) as plain:
        answers = [
            await plain.post("chat/nothing"),
            await plain.post("chat/completions", content=b"{", headers={"content-type": "application/json"}),
            await plain.post("completions", content=b"[]", headers={"content-type": "application/json"}),
            await plain.post("responses", content=b'{"a": 1, "a": 2}', headers={"content-type": "application/json"}),
            await plain.post("chat/completions", content=b"{}", headers={"content-type": "text/plain"}),
        ]

    assert [answer.status_code for answer in answers] == [404, 400, 400, 400, 415]
    for answer in answers:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]
