"""Serving beside rollouts with the real engine: it has its places at once, and rollouts sample what they would without it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from common.blobs import Blobs
from common.bus import Bus
from common.messages import AdapterRef, ServedSampling
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, Sampled
from rollout_svc.engine.stream import StreamRequest, stream
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.request import ServingContext
from rollout_svc.text.chat import Chat
from tests.rollout.engines import adapters_in, running_engine
from tests.rollout.oracle import Oracle, peft_name, published
from tests.support.rollout.replicas import CHAT, CONTEXT, Answer, Replica, Stage, performing
from tests.support.rollout.requests import POOL, PROMPT, sample_request

pytestmark = pytest.mark.slow
ROLLOUTS = 24
LENGTH = 400


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def serving_engine() -> AsyncIterator[Engine]:
    """Eight seats and two adapters for rollouts, four and one for serving, and cache for five rollouts of full length."""
    settings = replace(
        EngineSettings.of(POOL, device="cpu", cores=(0,)),
        sequences=12,
        adapters=3,
        adapters_held=12,
        serving_sequences=4,
        serving_adapters=1,
        kv_cache_gib=0.004,
    )
    async with running_engine(settings, warm=True) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def serving_adapters(serving_engine: Engine, blobs: Blobs, tmp_path: Path) -> AsyncIterator[Adapters]:
    async with adapters_in(serving_engine, blobs, tmp_path / "adapters", keep_s=60) as adapters:
        yield adapters


def replica(stage: Stage, engine: Engine, adapters: Adapters) -> Replica:
    chat = Chat(CHAT._tokenizer, [])  # no token ends a turn
    means = ServingContext(chat, adapters, partial(stream, engine), Admission(4, 1), CONTEXT, None, "engine")
    found = Replica(stage.bus, "engine", means=means)
    stage.replicas.append(found)
    found.start()
    return found


def greedy(tokens: int = 24) -> ServedSampling:
    return ServedSampling(max_tokens=tokens, temperature=0, seed=1, top_logprobs=2)


async def prompt() -> list[int]:
    return (await CHAT.conversation([{"role": "user", "content": "What is 3 + 4?"}], [], {}, CONTEXT))[0]


async def test_greedy_answer_is_the_engines_and_the_oracles(
    bus: Bus, serving_engine: Engine, serving_adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    versions: list[AdapterRef | None] = [None, *[await published(blobs, oracle, "served", number, seed=number) for number in (1, 2)]]
    found: list[Answer] = []
    async with performing(bus) as stage:
        replica(stage, serving_engine, serving_adapters)
        for ref in versions:
            answer = await stage.answer(stage.request(adapter=ref, sampling=greedy()))
            async with serving_adapters.using(ref) as name:
                direct = await serving_engine.sample(
                    sample_request(await prompt(), temperature=0.0, max_tokens=24, stop_ids=[], adapter=name)
                )
            assert answer.ids == direct.ids
            tokens = [token for delta in answer.deltas for token in delta.tokens]
            of = oracle.logprobs([*await prompt(), *answer.ids], peft_name(ref) if ref else None)[len(await prompt()) - 1 :]
            np.testing.assert_allclose([token.logprob for token in tokens], of, atol=1e-3)
            assert all(token.top[0].logprob == token.logprob for token in tokens), "the likeliest is taken"
            found.append(answer)
        assert len({tuple(answer.ids) for answer in found}) == 3, "versions and the base model differ"
        resumed = stage.request(adapter=versions[1], sampling=greedy(), sampled=np.asarray(found[1].ids[:10], "<i4").tobytes())
        assert (await stage.answer(resumed)).ids == found[1].ids[10:], "a second attempt goes on exactly there"


async def rollouts(engine: Engine, adapters: Adapters, refs: list[AdapterRef]) -> list[Sampled]:
    async with AsyncExitStack() as in_use:
        names = [await in_use.enter_async_context(adapters.using(ref)) for ref in refs]
        wanted = [
            sample_request([*PROMPT, *[10 + number] * 8], max_tokens=LENGTH, seed=number, stop_ids=[], adapter=names[number % len(names)])
            for number in range(ROLLOUTS)
        ]
        return list(await asyncio.gather(*map(engine.sample, wanted)))


async def test_serving_has_its_places_at_once_and_rollouts_stay_as_they_are(
    bus: Bus, serving_engine: Engine, serving_adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    """More rollouts than seats, of more adapters than slots, with more tokens than the cache holds."""
    refs = [await published(blobs, oracle, f"rollout{number}", 1, seed=10 + number) for number in range(4)]
    served = await published(blobs, oracle, "busy", 1, seed=20)
    undisturbed = await rollouts(serving_engine, serving_adapters, refs)
    answered = 0
    async with performing(bus) as stage:
        replica(stage, serving_engine, serving_adapters)
        running = asyncio.create_task(rollouts(serving_engine, serving_adapters, refs))
        while not running.done():
            answer = await stage.answer(stage.request(adapter=served, sampling=greedy(8)))
            assert answer.last.finish == "length", answer.last
            answered += 1
    disturbed = await running
    assert answered >= 20, "requests waited for rollouts to end"
    assert [one.ids for one in disturbed] == [one.ids for one in undisturbed]
    for one, other in zip(disturbed, undisturbed, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


async def test_cancelled_requests_leave_the_cache_free(serving_engine: Engine) -> None:
    """Together they would have filled it several times."""
    for number in range(20):
        parts = stream(serving_engine, StreamRequest(f"cancelled-{number}", [number + 3] * 400, 100, 1, [], None))
        await anext(parts)
        await parts.aclose()
    async with asyncio.timeout(60):
        whole = StreamRequest("whole", [9] * 500, 10, 1, [], None)
        assert sum([len(part.ids) async for part in stream(serving_engine, whole)]) == 10
        four = [serving_engine.sample(sample_request([number] * 100, max_tokens=400, stop_ids=[])) for number in range(4)]
        assert all(len(one.ids) == 400 for one in await asyncio.gather(*four))
    assert not serving_engine.process.llm.errored


async def test_no_tenant_learns_from_the_prefix_cache_what_another_has_asked(serving_engine: Engine) -> None:
    cached: list[int] = []
    for number, tenant in enumerate(("acme", "globex", "acme")):
        asked = StreamRequest(f"cached-{number}", [11] * 100, 1, 1, [], None, tenant=tenant)
        cached.append([part.cached_tokens async for part in stream(serving_engine, asked)][-1])
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


@pytest.mark.parametrize(
    ("setting", "likely"),
    [({"logit_bias": {7: 100.0}}, 7), ({"top_k": 1}, None), ({"top_p": 0.001}, None), ({"min_p": 1.0}, None)],
)
async def test_settings_of_a_request_reach_the_engine(serving_engine: Engine, setting: dict[str, object], likely: int | None) -> None:
    first = StreamRequest(f"greedy-{setting}", PROMPT, 1, 1, [], None, temperature=0.0)
    (best,) = [part.ids[0] async for part in stream(serving_engine, first)]
    changed = replace(first, request_id=f"set-{setting}", temperature=1.0, max_tokens=1, **setting)  # type: ignore[arg-type]
    assert [part.ids[0] async for part in stream(serving_engine, changed)] == [best if likely is None else likely]


@pytest.mark.parametrize("penalty", [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 10.0}])
async def test_penalties_change_what_is_sampled(serving_engine: Engine, penalty: dict[str, float]) -> None:
    plain = StreamRequest(f"plain-{penalty}", PROMPT, 30, 1, [], None, temperature=0.0)
    ids = [token async for part in stream(serving_engine, plain) for token in part.ids]
    punished = replace(plain, request_id=f"punished-{penalty}", **penalty)  # type: ignore[arg-type]
    assert len({token async for part in stream(serving_engine, punished) for token in part.ids}) > len(set(ids))


async def test_engine_refuses_what_it_cannot_take(bus: Bus, serving_engine: Engine, serving_adapters: Adapters) -> None:
    async with performing(bus) as stage:
        replica(stage, serving_engine, serving_adapters)
        sampling = ServedSampling(max_tokens=2, seed=1, logit_bias={10**6: 1.0})
        answer = await stage.answer(stage.request(sampling=sampling))
        assert answer.last.failure == "invalid", answer.last
