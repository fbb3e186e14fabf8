"""Memory that parking frees, as the kernel counts it from outside the process, and what a process without memory does."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.accelerators.executors import Tier
from tests.support.trainer.models import random_model
from tests.trainer.parkable_process import MIB, Parkable, parkable

LEFT_BYTES = 16 * MIB
"""Maximum growth over all cycles."""


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """93 MiB in float32: far more than what a process's memory changes by itself."""
    sizes = {"vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "head_dim": 64}
    return random_model(tmp_path_factory.mktemp("wide"), **sizes, max_position_embeddings=256)


@pytest.fixture(scope="module", params=["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def process(request: pytest.FixtureRequest, wide_model: Path) -> Iterator[Parkable]:
    """In float32 the weights are the mapped file; in bfloat16 they are copies that belong to the process alone."""
    with parkable(wide_model, request.param) as found:
        found.order("step")
        found.order("step")
        yield found


def test_parking_frees_base_and_states_and_waking_brings_them_back(process: Parkable) -> None:
    for tier in (Tier.HOST, Tier.DISK, Tier.NONE):
        process.order("step")
        moved, awake = process.order("bytes"), process.private_bytes()
        assert process.order(tier) == tier
        parked = process.private_bytes()
        assert awake - parked >= 0.9 * moved, (tier, awake / MIB, parked / MIB, moved / MIB)
        assert process.order("wake") == Tier.DEVICE
        process.order("step")
        assert process.private_bytes() - parked >= 0.5 * moved, tier


@pytest.mark.parametrize("cycles", [1, pytest.param(7, marks=pytest.mark.slow)])
def test_cycles_leave_nothing_behind(process: Parkable, cycles: int) -> None:
    process.order("cycles 1 host")
    process.order("host")
    before = process.private_bytes()
    process.order("wake")
    for tier in (Tier.HOST, Tier.DISK, Tier.NONE):
        process.order(f"cycles {cycles} {tier}")
    process.order("host")
    assert process.private_bytes() - before <= LEFT_BYTES
    process.order("wake")


def test_no_memory_on_wake_is_named_and_the_same_process_wakes_once_there_is_some(process: Parkable) -> None:
    process.order("none")
    process.order("wake")
    expected = process.order("step")["stored"]
    for tier in (Tier.DISK, Tier.NONE):
        process.order(tier)
        parked = process.private_bytes()
        process.order("limit 4")
        assert process.order("wake").startswith("there is no memory on the device to wake the base model: ")
        assert process.private_bytes() - parked <= LEFT_BYTES
        process.order("limit none")
        assert process.order("wake") == Tier.DEVICE
        assert process.order("step")["stored"] == expected
