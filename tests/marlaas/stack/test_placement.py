"""Cores and GPUs of a stack's processes."""

from pathlib import Path

import pytest

from marlaas.stack import placement
from marlaas.stack.control import make_plan, start
from marlaas.stack.devices import Gpu
from marlaas.stack.placement import Machine, shares
from marlaas.stack.state_files import StackError
from tests.support.paths import ROOT


def gpus(*numbers: str) -> tuple[Gpu, ...]:
    return tuple(Gpu(number, uuid=f"GPU-0000000{number}") for number in numbers)


def parts(*each: tuple[int, ...]) -> list[Machine]:
    return [Machine(cores) for cores in each]


@pytest.mark.parametrize(
    ("machine", "processes", "expected"),
    [
        (Machine((0, 1)), 2, parts((0,), (1,))),
        (Machine((0,)), 2, parts((0,), (0,))),
        (Machine((4, 5, 6, 7)), 4, parts((4,), (5,), (6,), (7,))),
        (Machine(tuple(range(8))), 2, parts((0, 1, 2, 3), (4, 5, 6, 7))),
        (Machine((0, 1), gpus("0")), 2, [Machine((), gpus("0"))] * 2),
        (Machine((0, 1), gpus("0", "3")), 2, [Machine((), gpus("0")), Machine((), gpus("3"))]),
        (Machine((0, 1), gpus("0", "1", "2")), 4, [Machine((), gpus(number)) for number in "0120"]),
        (Machine((0, 1), gpus("0", "1")), 4, [Machine((), gpus(number)) for number in "0110"]),
        (Machine((0, 1)), 0, []),
    ],
)
def test_sampling_and_training_get_cores_or_gpus_of_their_own(machine: Machine, processes: int, expected: list[Machine]) -> None:
    assert shares(machine, processes) == expected


def test_each_process_of_a_stack_is_given_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1), gpus("0", "1")))
    services = {service.name: service for service in make_plan(tmp_path, ROOT / "pools.toml").services}
    given = {name: service.env.get("CUDA_VISIBLE_DEVICES") for name, service in services.items()}
    assert given == {"scheduler": None, "gateway": None, "env": None, "rollout-tiny": "0", "trainer-tiny": "1"}
    assert {service.turn for service in services.values()} == {0}


ALONE = """\
[first]
model = "m"
[second]
model = "m"
[third]
model = "m"
"""


@pytest.mark.parametrize(
    ("numbers", "turns"),
    [
        ("", {}),
        ("0", {"rollout-second": 1, "rollout-third": 2, "trainer-first": 3, "trainer-second": 3, "trainer-third": 3}),
        ("01", {"rollout-third": 1, "trainer-first": 1, "trainer-second": 2, "trainer-third": 1}),
        ("012", {"trainer-second": 1, "trainer-first": 1, "trainer-third": 1}),
    ],
)
def test_samplers_of_a_gpu_start_one_after_another_and_its_trainers_after_them(
    numbers: str, turns: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM takes what others allocate while it measures for its own."""
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1), gpus(*numbers)))
    (tmp_path / "m").mkdir()
    (tmp_path / "pools.toml").write_text(ALONE)
    planned = make_plan(tmp_path / "data", tmp_path / "pools.toml").services
    assert {one.name: one.turn for one in planned if one.turn} == turns


@pytest.mark.parametrize(
    ("numbers", "shares"),
    [
        ("", [None, None]),
        ("0", ["0.15", "0.15"]),  # 0.95 − 0.5 − 0.3
        ("01", ["0.65", "0.45"]),
        ("0123", ["0.95", "0.95"]),
    ],
)
def test_trainer_gets_what_the_samplers_leave_of_its_gpu(
    numbers: str, shares: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1), gpus(*numbers)))
    (tmp_path / "m").mkdir()
    pools = '[first]\nmodel = "m"\ngpu_memory_share = 0.5\n[second]\nmodel = "m"\ngpu_memory_share = 0.3\n'
    (tmp_path / "pools.toml").write_text(pools)
    planned = {one.name: one.env for one in make_plan(tmp_path / "data", tmp_path / "pools.toml").services}
    assert [planned[f"trainer-{name}"].get("MARLAAS_TRAINER_GPU_MEMORY_SHARE") for name in ("first", "second")] == shares


def test_shared_gpu_is_the_nth_that_is_allowed_and_pools_of_their_own_use_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1), gpus("2", "3", "5")))
    (tmp_path / "m").mkdir()
    shared = '[accelerator.a]\ndevice = "cuda:0"\n[accelerator.b]\ndevice = "GPU-00000003"\n[alone]\nmodel = "m"\n'
    (tmp_path / "pools.toml").write_text(shared + '[x]\nmodel = "m"\non = "a"\n[y]\nmodel = "m"\non = "b"\n')
    planned = make_plan(tmp_path / "data", tmp_path / "pools.toml").services
    given = {one.name: one.env.get("CUDA_VISIBLE_DEVICES") for one in planned if "VISIBLE" in "".join(one.env)}
    assert given == {
        "rollout-alone": "5", "trainer-alone": "5", "rollout-x": "2", "trainer-x": "2", "rollout-y": "3", "trainer-y": "3",
    }  # fmt: skip
    assert {one.name for one in planned if one.turn} == {"trainer-alone"}


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


def test_start_is_refused_where_the_machine_lacks_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, before anything is made; each executor would else restart for ever."""
    monkeypatch.setattr(placement, "this_machine", lambda: Machine((0, 1)))
    (tmp_path / "m").mkdir()
    (tmp_path / "pools.toml").write_text('[accelerator.a]\ndevice = "cpu"\ncores = "7"\nmemory_gib = 2\n[p]\nmodel = "m"\non = "a"\n')
    with pytest.raises(StackError, match=r"pools.toml does not fit this machine: accelerator.a.cores has 7, but this machine has 0, 1"):
        start(make_plan(tmp_path / "data", tmp_path / "pools.toml"))
    assert not (tmp_path / "data").exists()
