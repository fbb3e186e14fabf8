"""An engine beside a stand-in for vLLM, whose process is no process."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from tests.support.rollout.requests import POOL


class Llm:
    """vLLM's AsyncLLM, whose requests end when they are aborted, and not before."""

    def __init__(self) -> None:
        self.errored = False
        self.aborted: list[str] = []
        self._ended = asyncio.Event()
        self.output_handler = SimpleNamespace(cancel=lambda: None)
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 1000))
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[])))

    async def generate(self, *_: object, **__: object) -> AsyncGenerator[Any]:
        await self._ended.wait()
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[], logprobs=None, finish_reason="abort")])

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        self._ended.set()

    async def pause_generation(self, **_: object) -> None:
        """Nothing runs."""

    async def resume_generation(self) -> None:
        """As above."""

    async def collective_rpc(self, method: str, **_: object) -> list[Any]:
        return [(100, 100, 1000) if method == "marlaas_sizes" else None]

    def shutdown(self, timeout: float) -> None:
        """It has no processes."""


class StandingProcess(EngineProcess):
    """With `Llm`; the log-probabilities of what woke are as they should be until `is_damaged`, and after a start."""

    is_damaged = False

    async def open(self) -> None:
        self.llm, self._thread, self.is_damaged = Llm(), ThreadPoolExecutor(), False


class Standing(Engine):
    def __init__(self, process: StandingProcess | None = None) -> None:
        self.standing = process or StandingProcess(EngineSettings.of(POOL, device="cpu"), cpu=True)
        super().__init__(self.standing)

    async def warm_up(self) -> None:
        """Its requests do not end."""

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str | None) -> list[float]:
        return [-6.0 if self.standing.is_damaged else -1.0] * (len(ids) - 1)
