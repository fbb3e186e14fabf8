"""The engine against transformers and PEFT: what it samples, under which adapter, with which log-probabilities."""

import asyncio
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from common.errors import Fatal, HandedBack, Reject
from rollout_svc.accelerators.sizes import Capacity
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from rollout_svc.engine.stream import StreamRequest, stream
from tests.rollout.oracle import Oracle, expected
from tests.support.rollout.requests import END, POOL, PROMPT, sample_request
from tests.support.waiting import eventually


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
async def test_logprobs_are_those_of_the_sampled_distribution(engine: Engine, oracle: Oracle, temperature: float) -> None:
    sampled = await engine.sample(sample_request(temperature=temperature, max_tokens=24, stop_ids=[]))
    assert len(sampled.ids) == 24
    np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, None, temperature), atol=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.3])
async def test_logprobs_under_an_adapter_are_those_of_peft(engine: Engine, oracle: Oracle, temperature: float) -> None:
    name = f"peft-{temperature}".replace(".", "-")
    await engine.load(name, oracle.adapter(name, seed=1, size=0.1))
    try:
        sampled = await engine.sample(sample_request(temperature=temperature, adapter=name, stop_ids=[]))
        under_adapter = expected(oracle, PROMPT, sampled, name, temperature)
        np.testing.assert_allclose(sampled.logprobs, under_adapter, atol=1e-4)
        assert np.abs(under_adapter - expected(oracle, PROMPT, sampled, None, temperature)).max() > 0.1
    finally:
        await engine.unload(name)


async def test_adapters_of_the_check_of_invariance_differ_from_the_base_model_and_from_each_other(engine: Engine) -> None:
    """Else the check says nothing of their kernels. They are gone afterwards."""
    before = await engine.loaded()
    async with engine._random_adapters() as names:
        base, *others = [np.asarray(await engine.prompt_logprobs(PROMPT, name)) for name in (None, *names)]
    assert len(others) == 2
    assert min(np.abs(one - other).max() for one, other in combinations([base, *others], 2)) > 0.1
    assert await engine.loaded() == before


async def test_same_seed_gives_same_tokens_and_others_differ(engine: Engine) -> None:
    first, repeated, other = await asyncio.gather(*(engine.sample(sample_request(seed=seed, stop_ids=[])) for seed in (7, 7, 2**62 + 1)))
    assert first.ids == repeated.ids
    assert first.ids != other.ids


async def test_token_that_ends_a_turn_is_sampled_with_its_logprob(engine: Engine, oracle: Oracle) -> None:
    answers = await asyncio.gather(*(engine.sample(sample_request(seed=seed, max_tokens=200)) for seed in range(8)))
    ended = [answer for answer in answers if answer.finish == "stop"]
    assert ended, "the tiny model ends most of its replies"
    for answer in ended:
        assert answer.ids[-1] == END and END not in answer.ids[:-1]
        np.testing.assert_allclose(answer.logprobs, expected(oracle, PROMPT, answer, None), atol=1e-4)


async def test_some_requests_are_handed_back_and_the_others_continue(engine: Engine) -> None:
    requests = [sample_request(seed=seed, max_tokens=200, stop_ids=[]) for seed in range(2)]
    alone = await engine.sample(replace(requests[1], request_id="alone"))
    inside = [asyncio.create_task(engine.sample(request)) for request in requests]
    await eventually(lambda: engine.process.progress().get(requests[0].request_id, 0) > 0)
    await engine.hand_back([requests[0].request_id])
    returned, sampled = await asyncio.gather(*inside, return_exceptions=True)
    assert isinstance(returned, HandedBack) and sampled == alone


@pytest.mark.parametrize("token", [576, 10**6, -1])
async def test_prompt_with_a_token_that_has_no_embedding_is_refused_and_ends_no_engine(engine: Engine, token: int) -> None:
    """A tokenizer may have more tokens than the model: of environments, of conversations, and as ids of a prompt."""
    for sampling in (engine.sample(sample_request(ids=[*PROMPT, token])), engine.prompt_logprobs([*PROMPT, token], None)):
        with pytest.raises(Reject, match=rf"the prompt has token {token}, and the model has embeddings for tokens 0 to 575 only"):
            await sampling
    served = StreamRequest("served", [*PROMPT, token], max_tokens=4, seed=0, stop_ids=[END], adapter=None, tenant="acme")
    with pytest.raises(Reject, match=f"token {token}"):
        _ = [part async for part in stream(engine, served)]
    assert (await engine.sample(sample_request(max_tokens=3, stop_ids=[]))).finish == "length"


async def test_reply_that_is_cut_says_so(engine: Engine) -> None:
    sampled = await engine.sample(sample_request(max_tokens=3, stop_ids=[]))
    assert (sampled.finish, len(sampled.ids)) == ("length", 3)


async def test_later_turns_are_begun_before_first_turns_that_came_earlier(engine: Engine) -> None:
    """Repeated where this process was so slow that the engine had room before later turns had come."""
    await eventually(lambda: _later_turns_are_first(engine))


async def _later_turns_are_first(engine: Engine) -> bool:
    ended: list[str] = []

    async def sampled(kind: str, priority: int, max_tokens: int) -> None:
        await engine.sample(sample_request(max_tokens=max_tokens, stop_ids=[], priority=priority))
        ended.append(kind)

    places = engine.settings.sequences
    async with asyncio.TaskGroup() as runners:  # what runs outlasts the asking, which takes a second where others compute too
        for kind, priority, max_tokens in (("running", 0, 200), ("first turn", 0, 4), ("later turn", -1, 4)):
            for _ in range(places):
                runners.create_task(sampled(kind, priority, max_tokens))
    later = [place for place, kind in enumerate(ended) if kind == "later turn"]
    first = [place for place, kind in enumerate(ended) if kind == "first turn"]
    return sum(later) / places < sum(first) / places - places / 2


async def test_adapters_in_one_batch_do_not_influence_each_other(engine: Engine, oracle: Oracle) -> None:
    names = [f"batch-{number}" for number in range(engine.settings.adapters)]  # every slot is taken, and the base model has none
    for seed, name in enumerate(names):
        await engine.load(name, oracle.adapter(name, seed=10 + seed, rank=4 * (seed + 1)))
    try:
        adapters = [None, *names] * 5
        together = await asyncio.gather(*(engine.sample(sample_request(adapter=adapter, seed=9, stop_ids=[])) for adapter in adapters))
        for adapter, sampled in zip(adapters, together, strict=True):
            np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, adapter), atol=1e-4, err_msg=str(adapter))
        alone = [await engine.sample(sample_request(adapter=adapter, seed=9, stop_ids=[])) for adapter in adapters[:4]]
        assert alone == together[:4]  # log-probabilities to the last bit
    finally:
        for name in names:
            await engine.unload(name)


async def test_random_adapters_of_the_check_are_two_that_differ_and_leave_nothing(engine: Engine) -> None:
    async with engine._random_adapters() as names:
        assert await engine.loaded() == {*names} and len(names) == 2
        sampled = await asyncio.gather(*(engine.sample(sample_request(adapter=name, stop_ids=[])) for name in (None, *names)))
        assert len({tuple(one.logprobs) for one in sampled}) == 3
    assert await engine.loaded() == set()


async def test_new_version_does_not_read_the_old_one_from_the_prefix_cache(engine: Engine, oracle: Oracle) -> None:
    prompt = [1, *range(100, 196)]  # six blocks to share
    for version in (1, 2):
        name = f"cache.v{version}"
        await engine.load(name, oracle.adapter(name.replace(".", "-"), seed=20 + version))
        try:
            for _ in range(2):  # the second one reads the first one's blocks
                sampled = await engine.sample(sample_request(prompt, adapter=name, stop_ids=[]))
                np.testing.assert_allclose(sampled.logprobs, expected(oracle, prompt, sampled, name.replace(".", "-")), atol=1e-4)
        finally:
            await engine.unload(name)


async def test_reused_name_with_other_weights_is_another_adapter(engine: Engine, oracle: Oracle) -> None:
    prompt = [1, *range(200, 296)]
    for seed in (31, 32):
        await engine.load("reused", oracle.adapter(f"reused-{seed}", seed=seed))
        sampled = await engine.sample(sample_request(prompt, adapter="reused", stop_ids=[]))
        await engine.unload("reused")
        np.testing.assert_allclose(sampled.logprobs, expected(oracle, prompt, sampled, f"reused-{seed}"), atol=1e-4)


async def test_more_adapters_than_a_batch_takes_still_all_answer(engine: Engine, oracle: Oracle) -> None:
    names = [f"many-{number}" for number in range(engine.settings.adapters_held)]
    assert len(names) > engine.settings.adapters
    for seed, name in enumerate(names):
        await engine.load(name, oracle.adapter(name, seed=40 + seed))
    try:
        assert await engine.loaded() == set(names)
        answers = await asyncio.gather(*(engine.sample(sample_request(adapter=name, stop_ids=[])) for name in names))
        for name, sampled in zip(names, answers, strict=True):
            np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, name), atol=1e-4)
    finally:
        for name in names:
            await engine.unload(name)
    assert await engine.loaded() == set()


async def test_prompt_logprobs_are_at_temperature_one(engine: Engine, oracle: Oracle) -> None:
    np.testing.assert_allclose(await engine.prompt_logprobs(PROMPT, None), oracle.logprobs(PROMPT, None), atol=1e-4)


async def test_aborted_request_says_so_and_others_continue(engine: Engine) -> None:
    finish = "length"
    while finish == "length":  # where the engine finishes it before this process continues
        doomed = sample_request(max_tokens=400, stop_ids=[])
        dying = asyncio.create_task(engine.sample(doomed))
        other = asyncio.create_task(engine.sample(sample_request(max_tokens=60, stop_ids=[])))
        await engine.sample(sample_request(max_tokens=1))  # by now both are inside
        await engine.abort([doomed.request_id, "never-heard-of"])
        finish = (await dying).finish
        assert (await other).finish == "length"
    assert finish == "aborted"


async def test_folder_that_is_no_adapter_is_rejected(engine: Engine, oracle: Oracle, tmp_path: Path) -> None:
    with pytest.raises(Reject, match="adapter empty cannot be loaded"):
        await engine.load("empty", tmp_path)
    with pytest.raises(Reject, match=r"adapter wide cannot be loaded.*rank"):
        await engine.load("wide", oracle.adapter("wide", seed=1, rank=2 * POOL.max_rank))
    assert await engine.loaded() == set()
    assert (await engine.sample(sample_request())).ids


async def test_request_that_does_not_fit_is_rejected_and_harms_no_other(engine: Engine) -> None:
    with pytest.raises(Reject, match="refuses request"):
        await engine.sample(sample_request([5] * (POOL.context_tokens + 1)))
    assert (await engine.sample(sample_request())).ids


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"model": "/nowhere/at/all"}, "/nowhere/at/all did not start"), ({"context_tokens": 65_536}, "did not start: .*65536")],
)
async def test_engine_that_cannot_start_says_why_in_one_line(engine: Engine, change: dict[str, object], complaint: str) -> None:
    with pytest.raises(Fatal, match=complaint) as caught:
        await Engine.start(replace(EngineSettings.of(POOL, device="cpu"), **change))  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)


async def test_capacity_of_a_closed_engine_is_nearly_what_it_has_once_it_is_open(engine: Engine) -> None:
    closed = Engine(EngineProcess(engine.settings))
    assert closed.process.kv_tokens == 0
    assert 0.99 < Capacity(closed).kv_tokens / engine.process.kv_tokens < 1.01
    assert Capacity(engine).kv_tokens == engine.process.kv_tokens
