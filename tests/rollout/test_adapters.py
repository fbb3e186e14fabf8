"""Adapter versions on a replica: loaded once, checked, held while used, gone when their time has come."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from common.blobs import Blobs
from common.errors import Reject
from common.messages import AdapterRef, BlobRef, Canary
from rollout_svc import adapters as module
from rollout_svc.adapters import Adapters, check_canary
from rollout_svc.engine.config import Tolerance
from rollout_svc.engine.engine import Engine
from tests.rollout.oracle import Oracle, expected, peft_name, published
from tests.support.rollout.requests import PROMPT, sample_request
from tests.support.waiting import eventually


async def versions(blobs: Blobs, oracle: Oracle, task: str, numbers: Sequence[int]) -> list[AdapterRef]:
    return [await published(blobs, oracle, task, number, seed=100 + number) for number in numbers]


async def holds(engine: Engine, *refs: AdapterRef) -> bool:
    return await engine.loaded() == {ref.engine_name for ref in refs}


async def test_version_is_fetched_and_loaded_once_for_all_who_wait(
    engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    (ref,) = await versions(blobs, oracle, "once", [1])
    numbers_before = engine._next_number

    async def sample(seed: int) -> None:
        async with adapters.using(ref) as name:
            sampled = await engine.sample(sample_request(adapter=name, seed=seed, stop_ids=[]))
            np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, peft_name(ref)), atol=1e-4)

    await asyncio.gather(*(sample(seed) for seed in range(6)))
    assert engine._next_number == numbers_before + 1
    assert await holds(engine, ref)
    assert [path.name for path in (tmp_path / "adapters").iterdir()] == [ref.engine_name]


async def test_version_zero_is_the_base_model(adapters: Adapters) -> None:
    async with adapters.using(None) as name:
        assert name is None


async def test_canary_mismatch_is_refused_by_name(engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle) -> None:
    first, other = await versions(blobs, oracle, "canary", [1, 2])
    wrong = first.model_copy(update={"canary": other.canary})
    for _ in range(2):
        with pytest.raises(Reject, match=r"disagree about version 1 of task canary: .* differ by \d.*, allowed is 0.001 and 0.001;"):
            async with adapters.using(wrong):
                pytest.fail("served an adapter that the trainer does not know")
    assert await holds(engine)
    async with adapters.using(other):
        assert await holds(engine, other)


async def test_canary_that_says_nothing_is_refused(adapters: Adapters, blobs: Blobs, oracle: Oracle) -> None:
    (ref,) = await versions(blobs, oracle, "silent", [1])
    for canary in (Canary(ids=b"", logprobs=b""), Canary(ids=ref.canary.ids, logprobs=b"")):
        adapters.end("silent")
        with pytest.raises(Reject, match="version 1 of task silent has a canary of"):
            async with adapters.using(ref.model_copy(update={"canary": canary})):
                pass


async def test_missing_blob_is_refused(engine: Engine, adapters: Adapters) -> None:
    blob = BlobRef(name="gone", size_bytes=1, sha256="0" * 64)
    ref = AdapterRef(task="gone", version=1, rank=8, blob=blob, canary=Canary(ids=b"", logprobs=b""))
    with pytest.raises(Reject, match="gone"):
        async with adapters.using(ref):
            pass
    assert await holds(engine)


async def test_old_version_goes_after_its_last_request(
    engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle, tmp_path: Path
) -> None:
    first, second, third, fourth = await versions(blobs, oracle, "old", [1, 2, 3, 4])
    async with adapters.using(first) as name:
        sampling = asyncio.create_task(engine.sample(sample_request(adapter=name, max_tokens=60, stop_ids=[])))
        for ref in (second, third, fourth):
            async with adapters.using(ref):
                pass
        assert first.engine_name in await engine.loaded()
        sampled = await sampling
        np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, peft_name(first)), atol=1e-4)
    await eventually(lambda: holds(engine, second, third, fourth))
    await eventually(lambda: not (tmp_path / "adapters" / first.engine_name).exists())


async def test_versions_of_an_ended_task_go_after_their_last_request(
    engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    (ended,) = await versions(blobs, oracle, "ended", [1])
    (other,) = await versions(blobs, oracle, "other", [1])
    async with adapters.using(other), adapters.using(ended):
        adapters.end("ended")
        assert await holds(engine, ended, other)
    await eventually(lambda: holds(engine, other))


async def test_least_recently_used_makes_room_and_comes_back_on_demand(
    engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    refs = [(await versions(blobs, oracle, f"lru-{number}", [1]))[0] for number in range(engine.settings.adapters_held + 1)]
    for ref in [*refs[:-1], refs[0]]:
        async with adapters.using(ref):
            pass
    async with adapters.using(refs[-1]):
        assert await holds(engine, refs[0], *refs[2:])
    async with adapters.using(refs[1]) as name:
        sampled = await engine.sample(sample_request(adapter=name, stop_ids=[]))
        np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, peft_name(refs[1])), atol=1e-4)


async def test_more_versions_in_use_than_fit_wait(engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle) -> None:
    refs = [(await versions(blobs, oracle, f"full-{number}", [1]))[0] for number in range(engine.settings.adapters_held + 2)]
    served: list[str] = []

    async def serve(ref: AdapterRef) -> None:
        async with adapters.using(ref) as name:
            await engine.sample(sample_request(adapter=name, max_tokens=8, stop_ids=[]))
            served.append(ref.engine_name)

    async with AsyncExitStack() as in_use:
        for ref in refs[:-2]:
            await in_use.enter_async_context(adapters.using(ref))
        waiting = [asyncio.create_task(serve(ref)) for ref in refs[-2:]]
        await engine.sample(sample_request(max_tokens=8, stop_ids=[]))
        assert served == []
        assert await holds(engine, *refs[:-2])
    await asyncio.gather(*waiting)
    assert sorted(served) == sorted(ref.engine_name for ref in refs[-2:])


async def test_no_request_is_served_before_the_canary_was_compared(
    engine: Engine, blobs: Blobs, oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing, go_on = asyncio.Event(), asyncio.Event()

    async def slow_check(engine: Engine, ref: AdapterRef, tolerance: Tolerance) -> None:
        comparing.set()
        await go_on.wait()
        await check_canary(engine, ref, tolerance)

    monkeypatch.setattr(module, "check_canary", slow_check)
    adapters = Adapters(engine, blobs, tmp_path / "slow", keep=2, keep_s=0, tolerance=engine.canary_tolerance)
    first, other = await versions(blobs, oracle, "unchecked", [1, 2])
    wrong = first.model_copy(update={"canary": other.canary})
    served: list[str | None] = []

    async def serve() -> None:
        async with adapters.using(wrong) as name:
            served.append(name)

    early = asyncio.create_task(serve())
    await comparing.wait()
    assert wrong.engine_name in await engine.loaded()
    late = asyncio.create_task(serve())
    await asyncio.sleep(0)
    go_on.set()
    outcomes = await asyncio.gather(early, late, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Reject, Reject]
    assert served == []
    assert await holds(engine)


async def test_loading_other_adapters_changes_nothing_of_a_running_request(
    engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle
) -> None:
    (mine,) = await versions(blobs, oracle, "mine", [1])
    others = await versions(blobs, oracle, "others", [1, 2, 3])
    async with adapters.using(mine) as name:
        alone = await engine.sample(sample_request(adapter=name, seed=7, max_tokens=200, stop_ids=[]))
        sampling = asyncio.create_task(engine.sample(sample_request(adapter=name, seed=7, max_tokens=200, stop_ids=[])))
        for ref in others:
            async with adapters.using(ref) as other:
                await engine.sample(sample_request(adapter=other, max_tokens=4, stop_ids=[]))
        disturbed = await sampling
    assert disturbed.ids == alone.ids
    np.testing.assert_allclose(disturbed.logprobs, alone.logprobs, atol=1e-4)


async def test_two_adapters_of_one_version_do_not_mix(engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle) -> None:
    """A step that was taken twice on a GPU gives two: only the one that the scheduler pinned may sample for it."""
    both = [(await versions(blobs, oracle, f"twin-{number}", [1]))[0] for number in range(2)]
    refs = [ref.model_copy(update={"task": "twin"}) for ref in both]
    for _ in range(2):
        for ref, made in zip(refs, both, strict=True):
            async with adapters.using(ref) as name:
                sampled = await engine.sample(sample_request(adapter=name, stop_ids=[]))
                np.testing.assert_allclose(sampled.logprobs, expected(oracle, PROMPT, sampled, peft_name(made)), atol=1e-4)


async def test_what_a_killed_process_left_is_not_trusted(engine: Engine, blobs: Blobs, oracle: Oracle, tmp_path: Path) -> None:
    (ref,) = await versions(blobs, oracle, "left", [1])
    torn = tmp_path / "left" / ref.engine_name
    torn.mkdir(parents=True)
    (torn / "adapter_config.json").write_text("{")
    adapters = Adapters(engine, blobs, tmp_path / "left", keep=2, keep_s=0, tolerance=engine.canary_tolerance)
    async with adapters.using(ref):
        assert await holds(engine, ref)
    await engine.unload(ref.engine_name)


async def test_damaged_blob_is_not_loaded(engine: Engine, adapters: Adapters, blobs: Blobs, oracle: Oracle, tmp_path: Path) -> None:
    (ref,) = await versions(blobs, oracle, "damaged", [1])
    with pytest.raises(Reject, match="damaged"):
        async with adapters.using(ref.model_copy(update={"blob": ref.blob.model_copy(update={"sha256": "0" * 64})})):
            pass
    assert await holds(engine)
    assert not (tmp_path / "adapters").exists()
