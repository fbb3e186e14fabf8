"""Cores and GPUs of a stack's processes."""

from pathlib import Path

import pytest

from common.pools import Accelerator
from marlaas.stack import placement
from marlaas.stack.control import make_plan, start
from marlaas.stack.placement import Machine, Share, gpus, objection, shares
from marlaas.stack.state_files import StackError
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("machine", "pools", "expected"),
    [
        (Machine((0, 1)), 1, [Share((0,), (1,))]),
        (Machine((0,)), 1, [Share((0,), (0,))]),
        (Machine((4, 5, 6, 7)), 2, [Share((4,), (5,)), Share((6,), (7,))]),
        (Machine(tuple(range(8))), 1, [Share((0, 1, 2, 3), (4, 5, 6, 7))]),
        (Machine((0, 1), ("0",)), 2, [Share(), Share()]),
        (Machine((0, 1), ("0", "3")), 1, [Share(rollout_gpu="0", trainer_gpu="3")]),
        (Machine((0, 1), ("0", "1", "2")), 2, [Share(rollout_gpu="0", trainer_gpu="1"), Share(rollout_gpu="2", trainer_gpu="0")]),
    ],
)
def test_sampling_and_training_get_cores_or_gpus_of_their_own(machine: Machine, pools: int, expected: list[Share]) -> None:
    assert shares(machine, pools) == expected


@pytest.mark.parametrize(
    ("listed", "visible", "expected"),
    [
        ("GPU 0: A\nGPU 1: A\n", None, ("0", "1")),
        ("GPU 0: A\nGPU 1: A\n", "1", ("1",)),
        ("GPU 0: A\nGPU 1: A\n", "GPU-7f, GPU-a0", ("GPU-7f", "GPU-a0")),
        ("GPU 0: A\n", "", ()),
        ("GPU 0: A\n", "-1", ()),
        ("No devices were found\n", "0", ()),
    ],
)
def test_gpus_are_those_that_answer_and_are_allowed(
    listed: str, visible: str | None, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{listed}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus() == expected


def test_each_process_of_a_stack_is_given_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1), ("0", "1")))
    services = {service.name: service.env for service in make_plan(tmp_path, ROOT / "pools.toml").services}
    given = {name: env.get("CUDA_VISIBLE_DEVICES") for name, env in services.items()}
    assert given == {"scheduler": None, "gateway": None, "env": None, "rollout-tiny": "0", "trainer-tiny": "1"}


SHARED = """\
[accelerator.a]
device = "cpu"
cores = "1"
memory_gib = 1
[accelerator.b]
device = "cuda:3"
cores = "3-4"
[alone]
model = "m"
[both]
model = "m"
on = "a"
[apart]
model = "m"
train_on = ["a", "b"]
"""


def test_executors_of_shared_accelerators_have_its_cores_and_others_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1, 2, 3, 4)))
    (tmp_path / "m").mkdir()
    (tmp_path / "pools.toml").write_text(SHARED)
    planned = make_plan(tmp_path / "data", tmp_path / "pools.toml").services[2:-1]
    services = {service.name: service.env for service in planned}
    given = {
        name: (
            env.get("MARLAAS_ROLLOUT_ACCELERATOR") or env.get("MARLAAS_TRAINER_ACCELERATOR"),
            env.get("MARLAAS_ROLLOUT_CORES", env.get("MARLAAS_TRAINER_CORES")),
            env.get("CUDA_VISIBLE_DEVICES"),
        )
        for name, env in services.items()
    }
    assert given == {
        "rollout-alone": (None, "0", None),
        "trainer-alone": (None, "2", None),
        "rollout-both": ("a", "1", None),
        "trainer-both": ("a", "1", None),
        "rollout-apart": (None, "3", None),
        "trainer-apart-a": ("a", "1", None),
        "trainer-apart-b": ("b", "3,4", "3"),
    }
    assert {service.name: service.leaves for service in planned if service.leaves} == {
        "rollout-both": [1],
        "trainer-both": [1],
        "trainer-apart-a": [1],
    }
    assert services["rollout-both"]["MARLAAS_ACCELERATORS_DIR"] == services["trainer-both"]["MARLAAS_ACCELERATORS_DIR"]


TWO_CPUS = """\
[accelerator.a]
device = "cpu"
cores = "0"
memory_gib = 1
[accelerator.b]
device = "cpu"
cores = "1"
memory_gib = 1
[tiny]
model = "m"
generate_on = ["a"]
train_on = ["b"]
"""


@pytest.mark.parametrize(
    ("cores", "sampler", "trainer"),
    [((0, 1, 2, 3), [0, 1], [0, 1]), ((0, 1), [0], [1])],
    ids=["others remain", "none remain"],
)
def test_executors_leave_the_cores_of_all_shared_cpus_where_others_remain(
    cores: tuple[int, ...], sampler: list[int], trainer: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine(cores))
    (tmp_path / "m").mkdir()
    (tmp_path / "pools.toml").write_text(TWO_CPUS)
    planned = make_plan(tmp_path / "data", tmp_path / "pools.toml").services
    assert {one.name: one.leaves for one in planned if one.leaves} == {"rollout-tiny": sampler, "trainer-tiny": trainer}


@pytest.mark.parametrize(
    ("device", "cores", "gpus", "complaint"),
    [
        ("cpu", (7,), (), "accelerator.a.cores has 7, but this machine has 0, 1"),
        ("cpu", (0, 1), (), None),
        ("cuda:0", (), (), "accelerator.a.device is 'cuda:0', but `nvidia-smi -L` lists no GPUs here"),
        ("cuda:1", (), ("0",), "accelerator.a.device is 'cuda:1', but `nvidia-smi -L` lists 1 GPUs here"),
        ("GPU-01234567", (), (), "accelerator.a.device is 'GPU-01234567', but `nvidia-smi -L` lists no GPUs here"),
        ("cuda:1", (), ("0", "1"), None),
    ],
)
def test_accelerator_that_the_machine_lacks_is_named(
    device: str, cores: tuple[int, ...], gpus: tuple[str, ...], complaint: str | None
) -> None:
    accelerators = {"a": Accelerator(device=device, cores=cores, memory_gib=1)}
    assert objection(accelerators, Machine((0, 1), gpus)) == complaint


def test_start_is_refused_where_the_machine_lacks_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything is made; each executor would else restart for ever."""
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1)))
    (tmp_path / "m").mkdir()
    (tmp_path / "pools.toml").write_text('[accelerator.a]\ndevice = "cpu"\ncores = "7"\nmemory_gib = 2\n[p]\nmodel = "m"\non = "a"\n')
    with pytest.raises(StackError, match=r"pools.toml is wrong here: accelerator.a.cores has 7, but this machine has 0, 1; correct it$"):
        start(make_plan(tmp_path / "data", tmp_path / "pools.toml"))
    assert not (tmp_path / "data").exists()
