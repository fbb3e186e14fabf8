"""An engine whose process lives and answers nothing, or dies, beside a stand-in for vLLM."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from common.errors import Fatal
from rollout_svc.engine import process as module
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import EngineProcess
from tests.support.rollout.requests import POOL
from tests.support.waiting import eventually


class Llm:
    """Answers each question when it may."""

    def __init__(self) -> None:
        self.errored = False
        self.marlaas_failure = os.memfd_create("nothing noted")
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0
        self.held: set[int] = set()

    async def list_loras(self) -> set[int]:
        self.asked += 1
        await self.answers.wait()
        return set(self.held)

    async def add_lora(self, request: Any) -> None:
        await self.answers.wait()
        self.held.add(request.lora_int_id)

    async def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> list[Any]:
        self.asked += 1
        await self.answers.wait()
        return [None]

    async def remove_lora(self, number: int) -> None:
        await self.answers.wait()
        self.held.remove(number)


@pytest_asyncio.fixture(loop_scope="session")
async def llm() -> Llm:
    return Llm()


@pytest_asyncio.fixture(loop_scope="session")
async def stand_in(llm: Llm) -> Engine:
    process = EngineProcess(EngineSettings.of(POOL), cpu=True)
    process.llm, process.patience_s = llm, 0.2
    return Engine(process)


async def test_engine_that_lives_and_does_not_answer_ends_the_process(llm: Llm, stand_in: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_PERIOD_S", 0.0)
    watching = asyncio.create_task(stand_in.process.wait_fatal())
    await eventually(lambda: llm.asked > 3)
    assert not watching.done()
    llm.answers.clear()
    with pytest.raises(Fatal, match=r"lives, but has not answered for 0.2 s"):
        await asyncio.wait_for(watching, 250)


async def test_answer_that_comes_late_but_in_time_is_no_end(llm: Llm, stand_in: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_PERIOD_S", 0.0)
    stand_in.process.patience_s = 60.0
    llm.answers.clear()
    watching = asyncio.create_task(stand_in.process.wait_fatal())
    await eventually(lambda: llm.asked == 1)
    await asyncio.sleep(0.3)
    llm.answers.set()
    await eventually(lambda: llm.asked > 3)
    assert not watching.done()
    watching.cancel()


async def test_dead_engine_is_noticed_while_a_question_waits(llm: Llm, stand_in: Engine) -> None:
    stand_in.process.patience_s = 600.0
    llm.answers.clear()
    watching = asyncio.create_task(stand_in.process.wait_fatal())
    await eventually(lambda: llm.asked == 1)
    llm.errored = True
    with pytest.raises(Fatal, match="process died"):
        await asyncio.wait_for(watching, 250)


async def test_loading_and_unloading_wait_for_an_answer_no_longer_than_that(llm: Llm, stand_in: Engine, tmp_path: Path) -> None:
    await stand_in.load("there", tmp_path)
    llm.answers.clear()
    with pytest.raises(Fatal, match="has not answered for"):
        await asyncio.wait_for(stand_in.load("more", tmp_path), 250)
    stand_in.process.patience_s = 600.0  # that it is stuck is known by now
    with pytest.raises(Fatal, match="has not answered for"):
        await asyncio.wait_for(stand_in.unload("there"), 250)


async def test_move_of_many_bytes_has_longer_and_no_probe_waits_behind_it(
    llm: Llm, stand_in: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_PERIOD_S", 0.0)
    llm.answers.clear()
    moving = asyncio.create_task(stand_in.process.move("reload_weights", size_bytes=16 * 10**9))
    await eventually(lambda: llm.asked == 1)
    watching = asyncio.create_task(stand_in.process.wait_fatal())
    await asyncio.sleep(0.5)
    assert not moving.done() and not watching.done()
    llm.answers.set()
    await moving
    await eventually(lambda: llm.asked > 3)
    watching.cancel()


async def test_move_that_hangs_ends_the_process(llm: Llm, stand_in: Engine) -> None:
    llm.answers.clear()
    with pytest.raises(Fatal, match=r"has not answered for 0\.3 s"):
        await asyncio.wait_for(stand_in.process.move("sleep", size_bytes=2 * 10**6), 250)
