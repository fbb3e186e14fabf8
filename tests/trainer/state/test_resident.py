"""The LRU cache of states: eviction by number and by size, and what it keeps while the trainer is parked."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from common.accelerators.executors import Tier
from tests.trainer.steps import DIFFERENT, assert_identical, begin
from trainer_svc.model.policy import Policy
from trainer_svc.state.resident import Residents, with_vectors


def test_least_recently_trained_task_gives_way(policy: Policy) -> None:
    residents = Residents(limit=2)
    kept = {name: begin(policy, spec) for name, spec in DIFFERENT.items()}
    residents.keep(kept["a"], "a1")
    residents.keep(kept["b"], "b1")
    assert residents.get("a", "a1") is kept["a"]
    residents.keep(kept["c"], "c1")
    assert residents.get("b", "b1") is None
    assert residents.get("a", "a1") is kept["a"]
    assert residents.get("a", "a2") is None
    residents.forget("a")
    assert residents.get("a", "a1") is None
    assert len(residents) == 1


def test_large_states_give_way_before_there_are_too_many(policy: Policy) -> None:
    small, large, other = (begin(policy, DIFFERENT[name]) for name in "bca")
    assert small.size_bytes == 12 * small.optimizer.params.numel()
    residents = Residents(limit=8, limit_bytes=large.size_bytes + small.size_bytes)
    for resident in (small, large):
        residents.keep(resident, "1")
    assert (len(residents), residents.size_bytes) == (2, large.size_bytes + small.size_bytes)
    residents.keep(other, "1")
    assert residents.get("b", "1") is None
    assert residents.size_bytes <= large.size_bytes + small.size_bytes
    nothing_fits = Residents(limit=8, limit_bytes=1)
    nothing_fits.keep(small, "1")
    assert len(nothing_fits) == 0


@pytest.mark.parametrize(("tier", "stays"), [(Tier.DEVICE, "abc"), (Tier.HOST, "abc"), (Tier.DISK, "b"), (Tier.NONE, "b")])
async def test_parked_states_are_kept_in_host_memory_and_deeper_only_where_no_checkpoint_has_them(
    policy: Policy, tier: Tier, stays: str
) -> None:
    """B's version 1 can only be recomputed from its lineage, which costs a step."""
    residents = Residents(limit=8)
    kept = {name: replace(begin(policy, DIFFERENT[name]), version=1, stored_at=int(name != "b")) for name in "abc"}
    for resident in kept.values():
        residents.keep(resident, "1")
    await residents.park(tier)
    residents.wake()
    found = {name: resident for name in "abc" if (resident := residents.get(name, "1")) is not None}
    assert "".join(found) == stays
    for name, resident in found.items():
        assert_identical(resident, kept[name])
        assert (resident.stored_at, resident.skips) == (kept[name].stored_at, kept[name].skips)
        addresses = [state.optimizer.params.data_ptr() for state in (resident, kept[name])]
        assert (addresses[0] == addresses[1]) is (tier is Tier.DEVICE)


async def test_state_that_is_stored_while_the_trainer_is_parked_is_parked_too(policy: Policy) -> None:
    """A version may be published late, where NATS was unavailable."""
    residents = Residents(limit=8)
    await residents.park(Tier.DISK)
    stored, other = (replace(begin(policy, DIFFERENT[name]), version=1, stored_at=at) for name, at in (("a", 1), ("b", 0)))
    for one in (stored, other):
        residents.keep(one, "1")
        await residents.park_late(one.task)
    assert residents.get("a", "1") is None
    found = residents.get("b", "1")
    assert found is not None
    assert found is not other
    assert_identical(found, other)
    residents.wake()
    residents.keep(stored, "1")
    await residents.park_late("a")
    assert residents.get("a", "1") is stored


async def test_states_that_no_file_takes_are_dropped(policy: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    residents = Residents(limit=8)
    residents.keep(begin(policy, DIFFERENT["a"]), "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with capture_logs() as logs:
        await residents.park(Tier.HOST)
    assert [(line["event"], line["tasks"]) for line in logs] == [("states_dropped", ["a"])]
    assert len(residents) == 0


@pytest.mark.parametrize("words", ["CUDA error: out of memory", "CUDA error: an illegal memory access"])
def test_state_for_which_no_memory_can_be_page_locked_is_dropped(policy: Policy, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is `meta` in place of a GPU."""

    def fail(*_: Tensor, **__: object) -> Tensor:
        raise torch.AcceleratorError(words)

    residents = Residents(limit=1, host_bytes=2**30)
    for name in "ab":
        resident = begin(policy, DIFFERENT[name])
        vectors = [vector.to("meta") for vector in resident.optimizer.vectors]
        monkeypatch.setattr(torch, "empty_like", fail)
        if name == "b" and "illegal" in words:
            with pytest.raises(torch.AcceleratorError, match=words):
                residents.keep(with_vectors(resident, vectors), "1")
            return
        residents.keep(with_vectors(resident, vectors), "1")
        monkeypatch.undo()
    assert (len(residents), residents.host_bytes) == (1, 0)


async def test_state_whose_copy_to_host_memory_is_still_queued_is_parked_after_it(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is a stand-in, whose copy ends only when it is waited for."""
    residents = Residents(limit=8)
    resident = begin(policy, DIFFERENT["a"])
    residents.keep(resident, "1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: resident.optimizer.exp_avg.fill_(7.0))
    await residents.park(Tier.HOST)
    residents.wake()
    found = residents.get("a", "1")
    assert found is not None
    assert found.optimizer.exp_avg.unique().tolist() == [7.0]
