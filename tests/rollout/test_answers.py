"""Answers of the sampler's handler, beside an engine with canned results."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from common import streams
from common.bus import MAX_PAYLOAD_BYTES, Delivery, Outgoing, Slots
from common.messages import AdapterRef, SampleTurns, TurnsSampled
from common.streams import Stream
from common.task_states import TaskStates
from rollout_svc import service
from rollout_svc.adapters import Adapters
from rollout_svc.engine.config import EXACT
from rollout_svc.engine.engine import Sampled, SampleRequest
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat
from tests.rollout.stage import first_turns, group_of, lasting, updated
from tests.support.rollout.books import Book, version


class CannedEngine:
    """An engine whose requests all get the same reply, at the moment when `requests` of them wait for it."""

    def __init__(self, reply: Sampled, requests: int) -> None:
        self.settings = SimpleNamespace(context_tokens=100_000, adapters_held=8, serving_adapters=0)
        self._reply = reply
        self._missing = requests
        self._all_there = asyncio.Event()

    def wake(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._all_there.set()

    async def sample(self, wanted: SampleRequest) -> Sampled:
        self.wake()
        await self._all_there.wait()
        return self._reply


class Wordy(Chat):
    """Every token is four letters, and reading many costs nothing."""

    def text(self, ids: Sequence[int]) -> str:
        return "word" * len(ids)


async def answers(
    engine: CannedEngine, chat: Chat, folder: Path, asked: SampleTurns, now_s: Callable[[str], float] = lambda _: 0.0
) -> list[Outgoing]:
    adapters = Adapters(engine, None, folder / "adapters", keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    rollout = Rollout(engine, chat, adapters, TaskStates(), Slots(512), now_s)  # pyright: ignore[reportArgumentType]
    subject = streams.sample(asked.group.pool, asked.group.task, asked.group.trajectory(asked.members[0].member))
    return [out async for out in rollout.handle(Delivery(subject, {}, asked.encode(), 1, 1))]


async def test_long_turns_of_one_moment_are_spread_over_messages(chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "coalescing_window_s", lasting(300.0))
    tokens = 10_240
    asked = SampleTurns(group=group_of("long", size=64, max_tokens=tokens), members=first_turns(range(64)))
    reply = Sampled([5] * tokens, [-0.5] * tokens, "length")
    twice = [await answers(CannedEngine(reply, 64), Wordy(chat._tokenizer, chat.stop_ids), tmp_path, asked) for _ in range(2)]
    sizes = [len(out.message.encode()) for out in twice[0]]
    assert sum(sizes) > MAX_PAYLOAD_BYTES > max(sizes)
    members = [turn.member for out in twice[0] for turn in (out.message.members if isinstance(out.message, TurnsSampled) else [])]
    assert members == list(range(64))
    assert len({out.message_id for out in twice[0]}) == len(twice[0])
    assert [out.message_id for out in twice[1]] == [out.message_id for out in twice[0]]


async def test_deadline_does_not_pass_while_the_clock_of_the_pool_stands(chat: Chat, tmp_path: Path) -> None:
    engine = CannedEngine(Sampled([5], [-0.5], "length"), 3)
    asked = SampleTurns(group=group_of("parked", size=2, deadline_s=100.0), members=first_turns(range(2)))
    pools: list[str] = []

    def now_s(pool: str) -> float:
        pools.append(pool)
        if len(pools) == 8:  # it was parked for longer than the group had left, and is awake now
            engine.wake()
        return 99.99

    answered = await answers(engine, chat, tmp_path, asked, now_s)
    assert sorted(turn.member for out in answered if isinstance(out.message, TurnsSampled) for turn in out.message.members) == [0, 1]
    assert set(pools) == {asked.group.pool}
    late = SampleTurns(group=group_of("late", size=2, deadline_s=99.0), members=first_turns(range(2)))
    assert await answers(engine, chat, tmp_path, late, now_s) == []


class Announcing:
    """A bus whose streams announce one version after another."""

    def __init__(self, refs: Sequence[AdapterRef]) -> None:
        self._refs, self.streams = refs, self

    async def follow(self, stream: Stream, subject: str, *, last_only: bool) -> AsyncIterator[Delivery]:
        for ref in self._refs:
            yield Delivery(streams.weight_updated("tiny", ref.task), {}, updated(ref).encode(), 1, 0)


async def test_new_version_that_cannot_be_written_ends_nothing(chat: Chat, tmp_path: Path) -> None:
    folder = tmp_path / "adapters"
    folder.write_text("in the way")
    book, tasks = Book(), TaskStates()
    tasks._states["task"] = "running"
    adapters = Adapters(book, book, folder, keep=2, keep_s=0, tolerance=EXACT)  # pyright: ignore[reportArgumentType]
    rollout = Rollout(CannedEngine(Sampled([], [], "stop"), 0), chat, adapters, tasks, Slots(8), lambda _: 0.0)  # pyright: ignore[reportArgumentType]
    with capture_logs() as logs:
        await rollout.follow_versions(Announcing([version(1), version(2)]), "tiny")  # pyright: ignore[reportArgumentType]
    assert [entry["event"] for entry in logs] == ["version_not_loaded"] * 2
    assert "MARLAAS_DATA_DIR" in logs[0]["reason"]
