"""One real engine for all tests of the sampler, and transformers with PEFT as the oracle of what it must answer.

The engine belongs to an event loop, so these tests share one.
"""

import inspect
import itertools
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite.binding  # noqa: F401  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py
import numpy as np
import pytest
import pytest_asyncio

from common.blobs import Blobs
from common.bus import Bus
from common.messages import AdapterRef, Canary
from common.pools import read_pools
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from rollout_svc.text.chat import Chat
from tests.conftest import at_work

if TYPE_CHECKING:
    from tests.rollout.stage import Stage

HERE = Path(__file__).parent
POOL = read_pools(HERE.parents[1] / "pools.toml")["tiny"].model_copy(update={"serving": None})
PROMPT = [1, 20, 30, 40, 50, 60, 70, 80]
END = 2
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and inspect.iscoroutinefunction(getattr(item, "function", None)):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def engine() -> AsyncIterator[Engine]:
    """Takes three adapters into a batch and holds four, so that tests can ask for more."""
    settings = replace(EngineSettings.of(POOL, device="cpu", cores=(0,)), adapters=3, adapters_held=4)
    engine = await Engine.start(settings)
    try:
        yield engine
    finally:
        engine.process.close()


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat.load(POOL.model)


@pytest_asyncio.fixture(loop_scope="session")
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_url, "test") as bus:
        await bus.declare()
        yield bus


class Oracle:
    """The same model in transformers, and PEFT adapters with random weights."""

    def __init__(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._torch = torch
        self._folder = folder
        base: Any = AutoModelForCausalLM.from_pretrained(POOL.model, dtype=torch.float32)
        self._model: Any = get_peft_model(base, LoraConfig(r=1, target_modules=["q_proj"]), adapter_name="none").eval()

    def adapter(self, name: str, *, seed: int, rank: int = 8, size: float = 0.05) -> Path:
        """A PEFT folder whose adapter changes every layer. A larger `size` changes more."""
        from peft import LoraConfig

        self._model.add_adapter(name, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS))
        generator = self._torch.Generator().manual_seed(seed)
        for key, value in self._model.named_parameters():
            if f".{name}." in key:
                value.data = self._torch.randn(value.shape, generator=generator) * size
        self._model.save_pretrained(self._folder, selected_adapters=[name])
        return self._folder / name

    def logprobs(self, ids: Sequence[int], adapter: str | None, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities of tokens 1…T-1 of `ids` (T,)."""
        return np.take_along_axis(self.distributions(ids, adapter, temperature), np.asarray(ids[1:])[:, None], 1)[:, 0]

    def distributions(self, ids: Sequence[int], adapter: str | None, temperature: float = 1.0) -> np.ndarray:
        """Log-probabilities (T-1, V) of every token in the places 1…T-1 of `ids` (T,)."""
        with self._torch.no_grad(), self._using(adapter):
            logits_T_V = self._model(self._torch.tensor([list(ids)])).logits[0, :-1].double() / temperature
        return logits_T_V.log_softmax(-1).numpy()

    @contextmanager
    def _using(self, adapter: str | None) -> Generator[None]:
        if adapter is None:
            with self._model.disable_adapter():
                yield
        else:
            self._model.set_adapter(adapter)
            yield


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(tmp_path_factory.mktemp("adapters"))


def sample_request(ids: Sequence[int] = PROMPT, **changes: Any) -> SampleRequest:
    """A request with a number of its own."""
    request = SampleRequest(f"test-{next(_numbers)}", ids, max_tokens=16, temperature=1.0, seed=1, stop_ids=[END], adapter=None)
    return replace(request, **changes)


def expected(oracle: Oracle, prompt: Sequence[int], sampled: Sampled, adapter: str | None, temperature: float = 1.0) -> np.ndarray:
    """The oracle's log-probabilities of the sampled tokens."""
    return oracle.logprobs([*prompt, *sampled.ids], adapter, temperature)[len(prompt) - 1 :]


async def published(blobs: Blobs, oracle: Oracle, task: str, version: int, *, seed: int) -> AdapterRef:
    """A version as the trainer publishes it, checked by the oracle instead. Its PEFT name is `peft_name(it)`."""
    name = f"{task}-v{version}"
    blob = await blobs.put_folder(f"{task}.v{version}.adapter", oracle.adapter(name, seed=seed))
    canary = Canary(ids=np.asarray(PROMPT, "<i4").tobytes(), logprobs=oracle.logprobs(PROMPT, name).astype("<f4").tobytes())
    return AdapterRef(task=task, version=version, rank=8, blob=blob, canary=canary)


def peft_name(ref: AdapterRef) -> str:
    return f"{ref.task}-v{ref.version}"


@pytest_asyncio.fixture(loop_scope="session")
async def blobs(bus: Bus) -> Blobs:
    return Blobs(bus)


@pytest_asyncio.fixture(loop_scope="session")
async def adapters(engine: Engine, blobs: Blobs, tmp_path: Path) -> AsyncIterator[Adapters]:
    """Keeps two versions behind the newest; leaves the engine as it found it."""
    adapters = Adapters(engine, blobs, tmp_path / "adapters", keep=2, keep_s=0, tolerance=engine.canary_tolerance)
    async with at_work(adapters.run()):
        yield adapters
    for name in await engine.loaded():
        await engine.unload(name)


@pytest_asyncio.fixture(loop_scope="session")
async def stage(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> AsyncIterator["Stage"]:
    from tests.rollout.stage import performing  # which imports this module

    async with performing(bus, engine, chat, adapters) as stage:
        yield stage


@pytest.fixture
def endless(chat: Chat) -> Chat:
    """No token ends a turn: replies continue to their limit."""
    return Chat(chat._tokenizer, [])
