"""A cold start that fails says why: where there was no memory others must give theirs, and where the state is wrong they need not."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_DATA, getrlimit, setrlimit

import pytest

from common.accelerators import NoMemory, StateMismatch, Tier
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.engine import config as engine_config
from rollout_svc.engine import process as module
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from rollout_svc.engine.start import how_it_ended
from tests.rollout.parking import failing_worker
from tests.rollout.parking.outside import children
from tests.rollout.parking.sleeping import no_adapters, sleeping_settings
from tests.support.waiting import at_work, eventually


@contextmanager
def data_limit(more: int) -> Generator[None]:
    """This process, and those that it starts, may have so many bytes more than it has."""
    before = getrlimit(RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
    setrlimit(RLIMIT_DATA, (used + more, RLIM_INFINITY))
    try:
        yield
    finally:
        setrlimit(RLIMIT_DATA, before)


async def test_cold_start_without_memory_is_said_with_the_childs_reason(model_folder: Path) -> None:
    before = children()
    parking = Parking(Engine(EngineProcess(replace(sleeping_settings(model_folder), kv_cache_gib=2.0))))
    with (
        data_limit(2**30),
        pytest.raises(NoMemory, match=r"did not start: RuntimeError: .*can't allocate memory: you tried to allocate"),
    ):
        await parking.wake(no_adapters)
    assert parking.tier is Tier.NONE
    await eventually(lambda: children() <= before)


@pytest.mark.parametrize(
    ("worker", "failure", "reason"),
    [
        (
            failing_worker.Killed,
            NoMemory,
            "did not start: its process (was ended by SIGKILL|ended without .*), as where there is no memory",
        ),
        (failing_worker.Refused, NoMemory, r"did not start: ValueError: Free memory on device cuda:0 \(20.11/79.1 GiB\)"),
        (failing_worker.Broken, StateMismatch, "did not start: ValueError: layer 3 of the model is not known here"),
    ],
)
async def test_reason_of_a_cold_start_that_fails_is_the_childs(
    monkeypatch: pytest.MonkeyPatch, model_folder: Path, worker: type, failure: type[Exception], reason: str
) -> None:
    monkeypatch.setattr(engine_config, "SLEEPING_WORKER", f"{worker.__module__}.{worker.__qualname__}")
    parking = Parking(Engine(EngineProcess(sleeping_settings(model_folder))))
    with pytest.raises(failure, match=reason):
        await parking.wake(no_adapters)
    assert parking.tier is Tier.NONE


async def test_engine_that_dies_when_it_first_samples_is_closed_and_its_service_lives_and_says_why(
    monkeypatch: pytest.MonkeyPatch, model_folder: Path
) -> None:
    monkeypatch.setattr(engine_config, "SLEEPING_WORKER", f"{failing_worker.__name__}.Unfit")
    monkeypatch.setattr(module, "HEALTH_PERIOD_S", 0.001)
    before = children()
    engine = Engine(EngineProcess(sleeping_settings(model_folder)))
    parking = Parking(engine)
    async with at_work(engine.process.wait_fatal()) as watching:
        with pytest.raises(
            StateMismatch, match="the inference engine's process died: ValueError: head size 40 is not supported by this att"
        ):
            await parking.wake(no_adapters)
        assert parking.tier is Tier.NONE and not engine.process.is_open
        await eventually(lambda: children() <= before)
        assert not watching.done()


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ("{'EngineCore': -9}", "its process was ended by SIGKILL, as where there is no memory"),
        ("{'EngineCore_DP0': -7}", "its process was ended by SIGBUS, as where there is no memory"),
        ("{}", "its process ended without an error of its own, as where there is no memory"),
        ("{'EngineCore': -11}", "Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -11}"),
    ],
)
def test_end_of_a_process_that_wrote_no_error_is_read_from_vllms_message(processes: str, said: str) -> None:
    """Also where vLLM noticed it before the kernel said how."""
    failed = f"Engine core initialization failed. See root cause above. Failed core proc(s): {processes}"
    assert how_it_ended(RuntimeError(failed)) == said
    assert how_it_ended(RuntimeError("no free port")) == "no free port"


async def test_folder_that_is_gone_starts_no_engine(model_folder: Path, tmp_path: Path) -> None:
    before = children()
    settings = replace(sleeping_settings(model_folder), model=str(tmp_path / "tiny"), named="models/tiny")
    parking = Parking(Engine(EngineProcess(settings)))
    with pytest.raises(
        StateMismatch, match=r"^the folder of model 'models/tiny' of the pools file is gone: /.*; start this service again, which"
    ):
        await parking.wake(no_adapters)
    assert parking.tier is Tier.NONE and children() == before
