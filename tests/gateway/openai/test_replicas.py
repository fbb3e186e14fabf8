"""OpenAI's client against replicas through NATS: the sampler's own serving, with a source of tokens in place of its engine."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from common.messages import ProcessLife
from common.streams import HISTORY_BUCKET
from tests.gateway.openai.clients import openai as client_of
from tests.support.gateway.serving import gateway
from tests.support.rollout.replicas import CONTEXT, Replica
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "What is 3 + 4?"}]


@pytest.fixture
async def replica(world: World) -> AsyncGenerator[Replica]:
    replica = Replica(world.bus, "r0", sequences=16)
    replica.start()
    yield replica
    await replica.stop()


@pytest.fixture
async def client(world: World, nats_url: str, replica: Replica) -> AsyncGenerator[AsyncOpenAI]:
    async with gateway(world.bus, nats_url) as address, client_of(address) as found:
        yield found


async def test_a_version_answers_whole_and_streamed_with_the_same_text_and_usage(
    world: World, client: AsyncOpenAI, replica: Replica
) -> None:
    await world.run("sums-1", spec())

    whole = await client.chat.completions.create(model="sums-1@latest", messages=HELLO, max_tokens=40)
    stream = await client.chat.completions.create(
        model="sums-1@3", messages=HELLO, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens == 40
    assert whole.usage.prompt_tokens == len(replica.source.begun[0].ids)
    assert (whole.model, chunks[0].model, whole.choices[0].finish_reason) == ("sums-1@3", "sums-1@3", "length")
    assert whole.system_fingerprint


async def test_text_tokens_choices_and_responses(client: AsyncOpenAI) -> None:
    text = await client.completions.create(model="tiny", prompt=[[5, 6, 7], [8, 9]], n=2, max_tokens=8)
    response = await client.responses.create(model="tiny", input="What is 3 + 4?", max_output_tokens=40)
    chat = await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=40)

    assert [choice.index for choice in text.choices] == [0, 1, 2, 3]
    assert text.usage is not None
    assert (text.usage.prompt_tokens, text.usage.completion_tokens) == (10, 32)
    assert response.output_text == chat.choices[0].message.content
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=CONTEXT)

    assert caught.value.code == "context_length_exceeded"
    assert str(CONTEXT) in str(caught.value)


@pytest.mark.parametrize("token", [550, 999_999])
async def test_a_bias_for_what_is_no_token_is_refused_before_the_engine_sees_it(client: AsyncOpenAI, replica: Replica, token: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model="tiny", prompt="a", logit_bias={str(token): 100})

    assert (caught.value.param, caught.value.code) == ("logit_bias", "invalid_value")
    assert f"{token} is no token's id; the model has the ids 0 to 513" in str(caught.value)
    assert not replica.source.begun


async def test_a_name_that_the_template_does_not_show_is_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="tiny", messages=[*HELLO, {"role": "user", "content": "a", "name": "ann"}])

    assert caught.value.param == "messages[1].name"


async def test_without_a_replica_it_is_503_in_time_and_never_sampled(world: World, nats_url: str) -> None:
    async with gateway(world.bus, nats_url, first_token_s=0.5) as address, client_of(address) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
    late = Replica(world.bus, "late")
    late.start()
    try:
        async with gateway(world.bus, nats_url) as address, client_of(address) as client:
            await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
    finally:
        await late.stop()

    assert (caught.value.status_code, caught.value.code) == (503, "overdue")
    assert caught.value.response.headers["retry-after"]
    assert len(late.source.begun) == 1


@pytest.mark.parametrize(("first_token_s", "start_s", "waits"), [(10.0, 600.0, False), (2.0, 1.5, True)], ids=["too long", "soon"])
async def test_where_the_sampler_restarts_the_answer_says_when(
    world: World, nats_url: str, first_token_s: float, start_s: float, waits: bool
) -> None:
    """Immediately where it takes longer than a request waits; a request that waited in vain has the same answer."""
    now_s = world.bus.clock.now_s()
    life = ProcessLife(service="rollout", replica="r0", pool="tiny", began_s=now_s, start_s=start_s).dead("killed by SIGKILL", now_s)
    await world.bus.kv.put(HISTORY_BUCKET, "rollout.r0", life)
    async with gateway(world.bus, nats_url, first_token_s=first_token_s) as address, client_of(address) as client:

        async def refusal() -> openai.InternalServerError:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=4)
            return caught.value

        await eventually(lambda: is_restarting(refusal))
        began = time.monotonic()
        found = await refusal()
        assert (time.monotonic() - began > first_token_s) == waits
        assert (found.status_code, found.code) == (503, "restarting") and "'tiny' is restarting, about" in str(found)
        assert 1 <= int(found.response.headers["retry-after"]) <= start_s


async def is_restarting(refusal: Callable[[], Awaitable[openai.InternalServerError]]) -> bool:
    """Whether the gateway has looked."""
    return (await refusal()).code == "restarting"


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_client_that_goes_frees_its_places_at_the_replica(client: AsyncOpenAI, replica: Replica, is_begun: bool) -> None:
    (replica.source.may_go_on if is_begun else replica.source.may_begin).clear()
    body = {"model": "tiny", "messages": HELLO, "stream": True, "n": 2}
    async with httpx.AsyncClient(timeout=60) as plain:
        are_running = asyncio.Event()
        sent = asyncio.create_task(_read_one(plain, f"{client.base_url}chat/completions?tenant=acme", body, are_running))
        await eventually(lambda: len(replica.source.running) == 2)
        are_running.set()
        if not is_begun:
            sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
    await eventually(lambda: not replica.source.running, 30)


async def _read_one(plain: httpx.AsyncClient, url: str, body: dict[str, object], may_go: asyncio.Event) -> None:
    """Goes after the first event, which one choice alone may have sent."""
    async with plain.stream("POST", url, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                await may_go.wait()
                return


async def test_each_request_is_booked_once_with_what_its_client_was_given(world: World, client: AsyncOpenAI, replica: Replica) -> None:
    await world.run("sums-1", spec())
    answers = [
        await client.chat.completions.create(model="sums-1@2", messages=HELLO, max_tokens=9),
        await client.completions.create(model="tiny", prompt="4 + 4", n=2, max_tokens=7),
    ]
    replica.source.may_go_on.clear()
    stream = await client.chat.completions.create(model="sums-1@2", messages=HELLO, max_tokens=9, stream=True)
    await anext(aiter(stream))
    await stream.close()

    booked = "SELECT task, version, count(*), sum(prompt_tokens), sum(sampled_tokens) FROM served_requests GROUP BY 1, 2 ORDER BY 1"
    prompts = [answer.usage.prompt_tokens for answer in answers if answer.usage]
    await world.rows_become(booked, [("sums-1", 2, 2, 2 * prompts[0], 9 + 1), (None, None, 2, prompts[1], 2 * 7)])
    assert [answer.usage.completion_tokens for answer in answers if answer.usage] == [9, 14]


async def test_whole_answer_that_fails_is_nobodys_bill(world: World, client: AsyncOpenAI, replica: Replica) -> None:
    """Although one of its choices has ended. A stream's client was given what came before the error, and pays that."""
    await world.run("sums-1", spec())
    replica.source.breaks = lambda request, place: list(request.ids) == [8, 9] and place == 5
    with pytest.raises(openai.InternalServerError):
        await client.completions.create(model="tiny", prompt=[[5, 6, 7], [8, 9]], max_tokens=3 + 3)
    with pytest.raises(openai.APIError):
        stream = await client.completions.create(model="tiny", prompt=[8, 9], max_tokens=6, stream=True)
        _ = [chunk async for chunk in stream]
    await client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=4)

    booked = "SELECT prompt_tokens, sampled_tokens FROM served_requests ORDER BY 1"
    await world.rows_become(booked, [(2, 5), (3, 4)])
