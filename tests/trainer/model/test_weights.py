"""Base weights out of the device's memory and back: the same numbers, or none at all."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor, nn

from common.accelerators.executors import StateMismatch, Tier
from tests.support.trainer.groups import make_groups, make_spec
from tests.support.trainer.models import VOCABULARY, random_model
from tests.trainer.steps import step
from trainer_svc.device.memory import paged_out, return_freed_memory
from trainer_svc.learner import initial_resident
from trainer_svc.model.policy import Policy
from trainer_svc.model.weights import Weights

CPU = torch.device("cpu")


def stepped(policy: Policy) -> Tensor:
    """Parameters after a step."""
    spec = make_spec("a")
    return step(policy, initial_resident(policy, "a", spec), spec, make_groups(3)).resident.optimizer.params


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_steps_after_any_move_are_those_without_it_bit_for_bit(folder: Path, precision: str) -> None:
    """In bfloat16 the weights are not the file's bytes, and belong to this process alone."""
    policy = Policy.load(str(folder), CPU, precision)  # pyright: ignore[reportArgumentType]
    expected = stepped(policy)
    for tier in (Tier.HOST, Tier.DISK, Tier.DEVICE, Tier.HOST, Tier.HOST):
        policy.park(tier)
        assert policy.tier is tier
        policy.wake()
        assert policy.tier is Tier.DEVICE
        assert torch.equal(stepped(policy), expected), tier


def test_dropped_weights_have_no_bytes_and_a_parked_policy_only_goes_deeper(folder: Path) -> None:
    policy = Policy.load(str(folder), CPU)
    tensors = [*policy._model.parameters(), *policy._model.buffers()]
    assert policy.weights_bytes == sum(tensor.untyped_storage().nbytes() for tensor in {t.data_ptr(): t for t in tensors}.values())
    policy.park(Tier.DISK)
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == 0
    policy.park(Tier.HOST)
    assert policy.tier is Tier.DISK


def test_policy_without_its_models_folder_is_not_parked_where_it_cannot_wake_from(folder: Path) -> None:
    other = Policy(Policy.load(str(folder), CPU)._model, CPU)
    with pytest.raises(ValueError, match="cannot wake from tier 'disk'"):
        other.park(Tier.DISK)
    assert other.tier is Tier.DEVICE


def test_weights_of_another_model_are_found_before_anything_is_computed(folder: Path, tmp_path: Path, policy: Policy) -> None:
    """One with the same shapes by its canary, one with others by their names; with the folder back, the policy wakes."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 128, "head_dim": 32, "max_position_embeddings": 256, "initializer_range": 0.1}
    same, deeper = ({**sizes, "intermediate_size": 256, "num_hidden_layers": layers} for layers in (4, 5))
    woken = Policy.load(str(folder), CPU)
    original = folder.rename(tmp_path / "original")
    for config, words in ((same | {"initializer_range": 0.1001}, "its canary differs by"), (deeper, "other tensors than before")):
        woken.park(Tier.DISK)
        random_model(folder, **config)
        with pytest.raises(StateMismatch, match=words):
            woken.wake()
        assert woken.tier is Tier.DISK
        shutil.rmtree(folder)
    with pytest.raises(StateMismatch, match="of the pools file is gone"):
        woken.wake()
    original.rename(folder)
    woken.wake()
    assert torch.equal(stepped(woken), stepped(policy))


def test_weights_in_host_memory_are_not_those_of_a_folder_that_was_exchanged_meanwhile(folder: Path, policy: Policy) -> None:
    woken = Policy.load(str(folder), CPU)
    woken.park(Tier.HOST)
    shutil.rmtree(folder)
    woken.wake()
    assert torch.equal(stepped(woken), stepped(policy))


def test_lost_buffer_is_found_and_the_next_wake_reads_the_model_again(folder: Path, policy: Policy) -> None:
    """Without its rotary table a model computes other numbers, and raises nothing."""
    woken = Policy.load(str(folder), CPU)
    woken.park(Tier.HOST)
    (table,) = [buffer for name, buffer in woken._model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    table.zero_()
    with pytest.raises(StateMismatch, match=r"its canary differs by .* nats, at most 0 are allowed; no step was computed"):
        woken.wake()
    assert woken.tier is Tier.DISK
    woken.wake()
    assert torch.equal(stepped(woken), stepped(policy))


def test_weights_that_no_file_takes_are_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = Policy.load(str(folder), CPU, "bfloat16")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with capture_logs() as logs:
        policy.park(Tier.HOST)
    assert policy.tier is Tier.DISK
    assert [line["event"] for line in logs] == ["parked_deeper"]
    policy.wake()


def linear(device: str) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8, device=device), nn.Linear(8, 8, bias=False, device=device)).requires_grad_(False)


def test_model_that_is_read_again_moves_to_the_device() -> None:
    """It is read on the CPU. The device here is `meta`, of which torch accepts no tensor of a CPU."""
    model = linear("meta")
    weights = Weights(model, torch.device("meta"))
    weights.drop()
    again = linear("cpu")
    weights.take(again)
    assert [(tensor.device.type, tensor.shape) for tensor in model.parameters()] == [
        ("meta", tensor.shape) for tensor in linear("meta").parameters()
    ]
    assert [tensor.numel() for tensor in again.parameters()] == [0, 0, 0]


def test_weights_that_a_failed_wake_left_in_host_memory_are_not_copied_again() -> None:
    """For a time the host would hold them twice. (Here it would fail: without a GPU no memory can be page-locked.)"""
    model = linear("cpu")
    before = [tensor.data_ptr() for tensor in model.parameters()]
    Weights(model, torch.device("cuda")).to_host()
    assert [tensor.data_ptr() for tensor in model.parameters()] == before


@pytest.mark.parametrize(("words", "tier"), [("CUDA error: out of memory", Tier.DISK), ("CUDA error: an illegal memory access", None)])
def test_weights_for_which_no_memory_can_be_page_locked_are_dropped(
    folder: Path, words: str, tier: Tier | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy.load(str(folder), CPU)

    def fail() -> None:
        raise torch.AcceleratorError(words)

    monkeypatch.setattr(policy._weights, "to_host", fail)
    if tier is None:
        with pytest.raises(torch.AcceleratorError, match=words):
            policy.park(Tier.HOST)
        return
    policy.park(Tier.HOST)
    assert policy.tier is tier
    policy.wake()


def test_what_torch_keeps_of_a_gpus_and_of_page_locked_memory_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is a stand-in."""
    returned = list[str]()
    return_freed_memory()
    assert returned == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: returned.append("device"))
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: returned.append("host"), raising=False)
    return_freed_memory()
    assert returned == ["device", "host"]


def test_paged_out_tensors_are_equal_and_share_what_they_shared() -> None:
    base = torch.arange(100_000, dtype=torch.float32)
    transposed, part, other = base.view(250, 400).t(), base[7:9], torch.arange(5, dtype=torch.int64)
    expected = [tensor.clone() for tensor in (transposed, part, other)]
    ((*found, empty),) = paged_out([[transposed, part, other, torch.empty(0)]])
    assert all(torch.equal(tensor, wanted) for tensor, wanted in zip(found, expected, strict=True))
    assert found[0].stride() == transposed.stride()
    assert found[0].untyped_storage().data_ptr() == found[1].untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert empty.numel() == 0
    (again,) = paged_out([found])
    assert [tensor.data_ptr() for tensor in again] == [tensor.data_ptr() for tensor in found]
    assert torch.equal(again[0], expected[0])


def test_page_that_was_written_to_is_not_lost() -> None:
    """It is in this process's memory alone, so its tensor moves to another file."""
    ((mapped,),) = paged_out([[torch.arange(100_000, dtype=torch.float32)]])
    mapped[5] = -1
    ((again,),) = paged_out([[mapped]])
    assert again.data_ptr() != mapped.data_ptr()
    np.testing.assert_array_equal(again[:7].numpy(), [0, 1, 2, 3, 4, -1, 6])
