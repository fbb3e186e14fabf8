"""Checkpoints: resuming from one, its bytes, and those that are refused."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from common.errors import Reject
from common.spec import TaskSpec
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.steps import DIFFERENT, assert_identical, run, step
from trainer_svc.batch import Group
from trainer_svc.model.adapter import WEIGHTS_FILE, write_adapter
from trainer_svc.model.policy import Policy
from trainer_svc.state.checkpoint import Manifest, Origin, read_checkpoint, spec_digest, write_checkpoint
from trainer_svc.state.resident import Resident

CPU = torch.device("cpu")


def write(folder: Path, resident: Resident, spec: TaskSpec) -> None:
    """Write a checkpoint with an arbitrary origin."""
    write_adapter(folder / "adapter", resident.layout, resident.optimizer.params, torch.float32)
    write_checkpoint(folder, resident, spec, Origin("0" * 64, "1" * 64), folder / "adapter" / WEIGHTS_FILE)


@pytest.mark.parametrize("name", ["b", "d"])
def test_resumed_run_equals_an_uninterrupted_one_bit_for_bit(policy: Policy, tmp_path: Path, name: str) -> None:
    spec = DIFFERENT[name]
    expected = run(policy, spec, 4)
    write(tmp_path, run(policy, spec, 2), spec)
    resumed = read_checkpoint(tmp_path, name, 2, spec, CPU)
    for _ in range(2):
        resumed = step(policy, resumed, spec).resident
    assert_identical(resumed, expected)


@pytest.mark.parametrize("several", [{}, {"passes": 2, "minibatches": 2}])
def test_skipped_updates_are_part_of_the_state(policy: Policy, tmp_path: Path, several: dict[str, int]) -> None:
    """A run resumed after three skips fails at the fourth, as one that never stopped; with passes and minibatches, too."""
    spec = make_spec("a", algorithm={"advantage": "dr_grpo", **several})
    resident = run(policy, spec, 1)
    for seed in range(3):
        resident = step(policy, resident, spec, changed_reward(make_groups(seed), 1e30)).resident
    write(tmp_path, resident, spec)
    resumed = read_checkpoint(tmp_path, "a", 4, spec, CPU)
    assert resumed.skips == resident.skips
    assert resumed.skips.versions == (1, 2, 3)
    assert_identical(step(policy, resumed, spec).resident, step(policy, resident, spec).resident)
    with pytest.raises(Reject, match="updates of the 3 steps before were skipped"):
        step(policy, resumed, spec, changed_reward(make_groups(9), 1e30))


def changed_reward(groups: list[Group], reward: float) -> list[Group]:
    """The first member of each group has that reward."""
    return [replace(group, trajectories=(replace(group.trajectories[0], reward=reward), *group.trajectories[1:])) for group in groups]


def test_state_without_skips_has_the_bytes_that_it_had_before_there_were_any(policy: Policy, tmp_path: Path) -> None:
    """Recorded digests of older versions stay comparable, and their manifests, without the field, are read."""
    spec = DIFFERENT["a"]
    write(tmp_path, run(policy, spec, 1), spec)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert list(manifest) == [name for name in Manifest.model_fields if name != "skips"]
    assert read_checkpoint(tmp_path, "a", 1, spec, CPU).skips.updates == 0


def test_checkpoint_is_the_same_bytes_each_time(policy: Policy, tmp_path: Path) -> None:
    resident = run(policy, DIFFERENT["a"], 1)
    for name in ("one", "two"):
        write(tmp_path / name, resident, DIFFERENT["a"])
    for file in ("state.safetensors", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_checkpoint_of_another_task_version_or_spec_is_refused(policy: Policy, tmp_path: Path) -> None:
    spec = DIFFERENT["a"]
    write(tmp_path, run(policy, spec, 1), spec)
    for task, version, other in (("b", 1, spec), ("a", 2, spec), ("a", 1, DIFFERENT["b"])):
        with pytest.raises(Reject, match="checkpoint is of"):
            read_checkpoint(tmp_path, task, version, other, CPU)


def test_damaged_checkpoint_is_refused(policy: Policy, tmp_path: Path) -> None:
    spec = DIFFERENT["a"]
    write(tmp_path, run(policy, spec, 1), spec)
    state = bytearray((tmp_path / "state.safetensors").read_bytes())
    state[-1] ^= 1
    (tmp_path / "state.safetensors").write_bytes(state)
    with pytest.raises(Reject, match="damaged"):
        read_checkpoint(tmp_path, "a", 1, spec, CPU)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(Reject, match=r"manifest\.json cannot be read"):
        read_checkpoint(tmp_path, "a", 1, spec, CPU)


def test_spec_digest_ignores_fields_at_their_defaults() -> None:
    assert spec_digest(make_spec("a", lora={"rank": 8})) == spec_digest(make_spec("a"))
    assert spec_digest(make_spec("a", lora={"rank": 4})) != spec_digest(make_spec("a"))


def test_spec_digest_of_a_task_that_was_stored_when_every_adapter_was_kept_stays() -> None:
    """Its checkpoints name the digest from when `all` was the default."""
    said = make_spec("a").model_dump(mode="json", exclude_defaults=True)
    then = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    assert spec_digest(make_spec("a", keep={"adapters": "all"})) == then
    chosen = said | {"keep": {"adapters": "checkpoints", "checkpoints": 3}}
    then = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
    assert spec_digest(make_spec("a", keep={"adapters": "checkpoints", "checkpoints": 3})) == then


def test_spec_digest_of_a_task_that_was_stored_before_lower_bounds_stays() -> None:
    """Its checkpoints are of a spec without `decide_by`, and its later batches of one that the scheduler completed."""
    task = {"every": 5}
    said = make_spec("a").model_dump(mode="json", exclude_defaults=True) | {"evaluation": task, "keep": {"best": 1}}
    then = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    for decided in ({}, {"decide_by": "mean"}, {"decide_by": "lower_bound"}):
        assert spec_digest(make_spec("a", keep={"adapters": "all"}, evaluation=task | decided)) == then
    assert spec_digest(make_spec("a", evaluation={"decide_by": "mean"})) == spec_digest(make_spec("a"))
