"""The memory estimate that `marlaas up` prints before it starts."""

import json
import socket
from pathlib import Path

import pytest

from bench.harness.models import QWEN3_0_6B
from common.pools import ALL_LAYERS, Accelerator, Accelerators, Pool, Pools, pool_memory, recomputed_layers
from common.pools.memory import GIB, PROCESS_BYTES, ModelShape, machine_bytes
from marlaas.memory import memory_needs
from marlaas.stack.placement import Machine
from tests.support.marlaas.command import marlaas


def pool_of(folder: Path, config: dict[str, object], **settings: int | str) -> Pool:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return Pool.model_validate({"model": str(folder), "max_rank": 32, **settings})


def trainers(pools: Pools, accelerators: Accelerators, machine: Machine = Machine((0, 1))) -> list[str]:  # noqa: B008
    """Lines about trainers, as `up` prints them."""
    lines = ["; ".join(filter(None, need)) for need in memory_needs(pools, accelerators, machine)]
    return [line for line in lines if not line.startswith("rollout-")]


def test_memory_is_estimated_before_anything_starts(tmp_path: Path) -> None:
    pool_of(tmp_path / "model", QWEN3_0_6B)
    (tmp_path / "pools.toml").write_text('[qwen]\nmodel = "model"\nmax_rank = 32\ntrain_tokens = 512\n')
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        done = marlaas("up", "--pools", "pools.toml", "--data", "data", "--nats-port", port, cwd=tmp_path)
    assert done.returncode == 1
    assert f"port {port}, which is for NATS, is in use" in done.stderr
    kind, sampler, trainer = done.stdout.splitlines()
    assert kind.startswith("pools without a shared accelerator compute on CPUs: ")
    assert sampler.startswith("rollout-qwen: model 2.2 GiB, slots of 16 adapters 2.0, KV cache 1.0 for about 4681 tokens")
    assert trainer.startswith("trainer-qwen: up to about ")
    assert "GiB for a micro-batch of 512 tokens and rank 32 (weights 2.2, " in done.stdout


def test_setting_to_lower_is_named_where_the_machine_has_less(tmp_path: Path) -> None:
    tokens = 2**20
    (said,) = trainers({"qwen": pool_of(tmp_path / "model", QWEN3_0_6B, train_tokens=tokens)}, {})
    assert f"only {machine_bytes() / GIB:.1f} GiB are in this machine: lower train_tokens of pool qwen to " in said
    fitting = int(said.partition("lower train_tokens of pool qwen to ")[2].split()[0])
    (said,) = trainers({"qwen": pool_of(tmp_path / "fits", QWEN3_0_6B, train_tokens=fitting)}, {})
    assert "only" not in said
    (said,) = trainers({"qwen": pool_of(tmp_path / "large", QWEN3_0_6B, train_tokens=2 * fitting)}, {})
    assert "only" in said


def test_form_that_a_trainer_uses_is_named(tmp_path: Path) -> None:
    """`auto` recomputes no more layers than needed; the trainer decides by the same rule."""
    shape = ModelShape.of(QWEN3_0_6B)
    assert shape is not None
    made = {name: pool_of(tmp_path / name, QWEN3_0_6B, checkpointing=name, train_tokens=4096) for name in ("auto", "on", "off")}
    needs = [pool_memory(made["auto"], shape, on_cpu=True, recomputed=number).total for number in range(28)]
    assert needs == sorted(needs, reverse=True)
    assert needs[27] < 0.5 * needs[0]
    for limit, expected in ((needs[0], 0), (needs[0] - 1, 1), (needs[9], 9), (needs[9] - 1, 10), (needs[27], 27), (0, 27)):
        found = {name: recomputed_layers(pool, shape, limit, on_cpu=True) for name, pool in made.items()}
        assert found == {"auto": expected, "on": 27, "off": 0}
    assert [recomputed_layers(pool, None, 0, on_cpu=True) for pool in made.values()] == [0, ALL_LAYERS, 0]
    said = list(trainers(made, {}))
    assert "tokens and rank 32, recomputing 27 layers (weights 2.2, " in said[1]
    assert "tokens and rank 32 (weights 2.2, " in said[2]
    large = pool_of(tmp_path / "large", QWEN3_0_6B, checkpointing="off", train_tokens=2**20)
    (sentence,) = trainers({"large": large}, {})
    assert sentence.endswith("in the pools file, or set its checkpointing to 'auto'")


def test_trainer_on_a_shared_accelerator_has_that_ones_memory_and_not_the_machines(tmp_path: Path) -> None:
    shape = ModelShape.of(QWEN3_0_6B)
    assert shape is not None
    pool = pool_of(tmp_path / "model", QWEN3_0_6B, on="a", train_tokens=4096)
    needs = [pool_memory(pool, shape, on_cpu=True, recomputed=number).total - PROCESS_BYTES for number in range(28)]
    assert needs[0] < machine_bytes()
    for memory_gib, expected in (
        (needs[0] / GIB, "rank 32 (weights"),
        (needs[5] / GIB, "recomputing 5 layers"),
        (1.0, "only 1.5 GiB may be"),
    ):
        accelerator = Accelerator(device="cpu", cores=(1,), memory_gib=memory_gib)
        (said,) = trainers({"qwen": pool}, {"a": accelerator})
        assert expected in said
    assert "on accelerator a and by its process: choose a smaller model, or raise memory_gib of [accelerator.a]" in said
    (said,) = trainers({"qwen": pool.model_copy(update={"on": None})}, {})
    assert "rank 32 (weights" in said


@pytest.mark.parametrize(
    ("config", "expected"), [({"model_type": "mamba"}, "memory not estimated: an unknown kind of model"), (None, "is not downloaded yet")]
)
def test_model_that_cannot_be_estimated_stops_nothing(config: dict[str, object] | None, expected: str, tmp_path: Path) -> None:
    pool = pool_of(tmp_path / "model", config) if config else Pool(model="someone/no-such-model")
    (said,) = trainers({"odd": pool}, {})
    assert expected in said
