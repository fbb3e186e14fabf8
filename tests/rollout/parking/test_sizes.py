"""Bytes that a sampler enters and reports: before its engine was ever open, and of weights and cache apart."""

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.bus import Bus
from common.pools.memory import loaded_bytes
from common.runtime.health import Health
from common.runtime.service import Running
from rollout_svc.accelerators.sizes import Capacity, Sizes, expected_sizes
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.footprint import Extension
from rollout_svc.engine.process import EngineProcess
from rollout_svc.replica import Replica
from rollout_svc.settings import RolloutSettings
from tests.support.rollout.requests import POOL

GPU_BYTES = 80 * 2**30
SHARE = 0.85
PARAMETERS = 8_000_000_000
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "I8": 1}


def write_weights(folder: Path, **numbers: int) -> None:
    """A file with one tensor of each type, with so many numbers; a hole in the file system."""
    header, begin = dict[str, Any](), 0
    for kind, count in numbers.items():
        end = begin + count * ELEMENT_BYTES[kind]
        header[kind] = {"dtype": kind, "shape": [count // 10, 10], "data_offsets": [begin, end]}
        begin = end
    packed = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(packed).to_bytes(8, "little") + packed)
        file.truncate(8 + len(packed) + begin)


def on_gpu(folder: Path) -> EngineSettings:
    return replace(EngineSettings.of(POOL), model=str(folder), gpu_memory_share=SHARE)


class Measuring(EngineProcess):
    """A process on a GPU, whose worker has counted."""

    async def worker(self, method: str, **_: Any) -> Any:
        assert method == "marlaas_sizes"
        return 17 * 10**9, 50 * 10**9, 1000


class Sampling(Engine):
    async def prompt_logprobs(self, ids: Sequence[int], adapter: str | None) -> list[float]:
        return [0.0] * (len(ids) - 1)


async def test_estimate_on_a_cpu_is_what_an_engine_has_that_is_awake(sleeper: Engine) -> None:
    weights, cache, _ = await sleeper.process.worker("marlaas_sizes")
    expected = expected_sizes(sleeper.settings, None)
    assert expected.weights == pytest.approx(weights, rel=0.03)
    assert expected.cache == pytest.approx(cache, rel=0.03)


class Worker(Extension):
    """A worker of a model of 64 bytes and a cache of 128, whose graphs vLLM has estimated on a GPU."""

    def __init__(self, graph_bytes: int | None) -> None:
        model = torch.nn.Linear(4, 4, bias=False)
        config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context={}))
        described = SimpleNamespace(get_vocab_size=lambda: 1000)
        self.model_runner = SimpleNamespace(model=model, kv_caches=[torch.zeros(32)], vllm_config=config, model_config=described)
        if graph_bytes is not None:
            self.cudagraph_memory_estimate = graph_bytes


@pytest.mark.parametrize(("graph_bytes", "held"), [(None, 64), (0, 64), (10**9, 64 + 10**9)])
def test_graphs_of_a_gpu_count_with_the_weights_with_which_they_sleep(graph_bytes: int | None, held: int) -> None:
    assert Worker(graph_bytes).marlaas_sizes() == (held, 128, 1000)
    source = find_spec("vllm.v1.worker.gpu_worker")
    assert source is not None and source.origin is not None
    assert "self.cudagraph_memory_estimate = " in Path(source.origin).read_text(), "vLLM names it so"


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_weights_count_in_the_precision_in_which_they_are_loaded(tmp_path: Path, stored: str) -> None:
    write_weights(tmp_path, **{stored: 1000, "I8": 70})
    assert loaded_bytes(tmp_path, "float32") == 4 * 1000 + 70
    assert loaded_bytes(tmp_path, "bfloat16") == 2 * 1000 + 70


def test_file_that_is_none_of_safetensors_counts_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    assert loaded_bytes(tmp_path, "float32") == 100


@pytest.mark.parametrize("stored", ["F32", "BF16"])
def test_sampler_on_a_gpu_enters_its_share_and_keeps_its_weights_alone_in_host_memory(tmp_path: Path, stored: str) -> None:
    """16 GB of weights fit into the 16 GiB of host memory that are an accelerator's default; its KV cache is four times as large."""
    write_weights(tmp_path, **{stored: PARAMETERS})
    parking = Parking(Engine(EngineProcess(on_gpu(tmp_path), cpu=False)), GPU_BYTES)
    assert parking.device_bytes == int(SHARE * GPU_BYTES)
    assert parking.host_bytes == 2 * PARAMETERS


@pytest.mark.parametrize("is_open", [False, True])
async def test_engine_of_a_gpu_needs_its_share_for_its_next_start_and_for_its_activations(tmp_path: Path, is_open: bool) -> None:
    write_weights(tmp_path, BF16=PARAMETERS)
    process = Measuring(on_gpu(tmp_path), cpu=False)
    process.llm = object() if is_open else None
    parking = Parking(Sampling(process), GPU_BYTES)
    await parking.learn()
    assert parking.device_bytes == int(SHARE * GPU_BYTES) > 67 * 10**9
    assert parking.host_bytes == 17 * 10**9


def test_cache_of_a_gpu_that_never_started_is_estimated_from_its_share() -> None:
    """The tiny model has 4 layers with keys and values of 64 numbers: 1024 bytes a token in bfloat16."""
    settings = replace(EngineSettings.of(POOL), precision="bfloat16", gpu_memory_share=SHARE)
    tokens = Capacity(Engine(EngineProcess(settings, cpu=False)), GPU_BYTES).kv_tokens
    assert tokens == expected_sizes(settings, GPU_BYTES).cache // 1024
    assert Capacity(Engine(EngineProcess(settings, cpu=False))).kv_tokens == settings.sequences * settings.context_tokens < tokens


async def test_parked_replica_on_a_gpu_offers_the_cache_of_its_share(
    bus: Bus, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLAAS_NATS_URL", nats_url)
    monkeypatch.setenv("MARLAAS_ROLLOUT_POOL", "tiny")
    monkeypatch.setenv("MARLAAS_DATA_DIR", str(tmp_path))
    settings = RolloutSettings.read()
    assert isinstance(settings, RolloutSettings)
    running, engine = Running(settings, bus, Health()), Engine(EngineProcess(EngineSettings.of(POOL), cpu=False))
    replica = await Replica.of(running, POOL, engine, GPU_BYTES)
    assert replica.capacity.kv_tokens == Capacity(engine, GPU_BYTES).kv_tokens > Capacity(engine).kv_tokens


def test_share_that_is_smaller_than_the_weights_leaves_no_cache(tmp_path: Path) -> None:
    write_weights(tmp_path, BF16=PARAMETERS)
    assert expected_sizes(on_gpu(tmp_path), 10**10) == Sizes(2 * PARAMETERS, 0)
