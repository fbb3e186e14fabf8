"""An engine that sleeps: its settings, the versions that it holds, and its long requests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from common.blobs import Blobs
from common.messages import AdapterRef
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from tests.rollout.oracle import Oracle, published
from tests.support.rollout.requests import POOL, sample_request
from tests.support.waiting import eventually

REQUESTS = 24


def sleeping_settings(model_folder: Path) -> EngineSettings:
    settings = EngineSettings.of(POOL, device="cpu", cores=(0,), sleeps=True)
    return replace(settings, model=str(model_folder), adapters=3, adapters_held=4, kv_cache_gib=0.125)


async def versions(blobs: Blobs, oracle: Oracle, *tasks: str) -> list[AdapterRef]:
    """A version of each task; all differ."""
    return [await published(blobs, oracle, task, 1, seed=300 + number) for number, task in enumerate(tasks)]


def long_requests(adapters: Sequence[str | None] = (None,)) -> list[SampleRequest]:
    """Requests that sample for half a second together, under these adapters in turn; made twice, they have the same tokens."""
    return [
        sample_request([1, 20, 30, 40 + number], seed=number, max_tokens=100, stop_ids=[], adapter=adapters[number % len(adapters)])
        for number in range(REQUESTS)
    ]


async def damage(engine: Engine, method: str) -> None:
    """Call this method of the worker, also of an engine that is stopped."""
    engine.process.proceed()
    await engine.process.worker(method)


async def progressed(engine: Engine, tokens: int) -> None:
    """Wait until the requests that are inside have so many more tokens."""
    goal = sum(engine.process.progress().values()) + tokens
    await eventually(lambda: sum(engine.process.progress().values()) >= goal)


def is_same(found: Sequence[Sampled], expected: Sequence[Sampled]) -> bool:
    """Whether tokens are equal, and log-probabilities within 1e-3."""
    return [one.ids for one in found] == [one.ids for one in expected] and all(
        abs(a - b) < 1e-3 for one, other in zip(found, expected, strict=True) for a, b in zip(one.logprobs, other.logprobs, strict=True)
    )


async def no_adapters(_: bool) -> None:
    """There are none to check."""
