"""A sampler's replica at work between a real NATS and a real engine, and the requests and groups of its tests."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import (
    AdapterRef,
    ChatMessage,
    CheckpointRef,
    GroupContext,
    SampledTurn,
    SampleTurns,
    TaskStatus,
    TokenRecord,
    TurnRequest,
    TurnsSampled,
    WeightUpdated,
)
from common.spec import EnvironmentSection, Limits, Sampling
from common.task_states import TaskStates
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine, Sampled, SampleRequest
from rollout_svc.engine.work import message_id
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat
from tests.rollout.oracle import Oracle
from tests.support.consuming import as_handler
from tests.support.groups import group_context
from tests.support.waiting import eventually

QUESTION = [ChatMessage(role="user", content="What is 3 + 4?")]


class Stage:
    """A replica at work, and what it answers."""

    def __init__(self, bus: Bus, rollout: Rollout, slots: Slots) -> None:
        self.bus = bus
        self.rollout = rollout
        self.slots = slots
        self.answers: list[TurnsSampled] = []

    def turns(self, group: GroupContext) -> dict[int, SampledTurn]:
        found = [turn for answer in self.answers if answer.group == group for turn in answer.members]
        assert len({turn.member for turn in found}) == len(found), "a member was answered twice"
        return {turn.member: turn for turn in sorted(found, key=lambda turn: turn.member)}

    async def ask(self, group: GroupContext, *requests: TurnRequest) -> None:
        numbers = [(request.member, request.turn) for request in requests]
        subject = streams.sample(group.pool, group.task, group.trajectory(requests[0].member))
        await self.bus.publish(Outgoing(subject, SampleTurns(group=group, members=list(requests)), f"ask:{message_id(group, numbers)}"))

    async def answer(self, group: GroupContext, *requests: TurnRequest) -> dict[int, SampledTurn]:
        """Ask and wait until every member is answered and the request is acknowledged."""
        await self.ask(group, *requests)
        await eventually(lambda: len(self.turns(group)) == len(requests))
        await eventually(self.is_idle)
        return self.turns(group)

    async def is_idle(self) -> bool:
        return await self.bus.streams.backlog(streams.PROMPTS) == 0


@asynccontextmanager
async def performing(bus: Bus, engine: Engine, chat: Chat, adapters: Adapters) -> AsyncGenerator[Stage]:
    tasks, slots = TaskStates(), Slots(64)
    rollout = Rollout(engine, chat, adapters, tasks, slots, lambda _: bus.clock.now_s())
    stage = Stage(bus, rollout, slots)

    async def collect(delivery: Delivery) -> None:
        stage.answers.append(delivery.read(TurnsSampled))

    runners = [
        asyncio.create_task(bus.consume(streams.rollout_samples("tiny"), rollout.handle, slots, max_pull=4)),
        asyncio.create_task(rollout.follow_tasks(bus)),
        asyncio.create_task(rollout.follow_versions(bus, "tiny")),
        asyncio.create_task(bus.consume(streams.env_turns("reasoning_gym"), as_handler(collect), Slots(64))),
    ]
    try:
        yield stage
        assert not [runner.exception() for runner in runners if runner.done()], "a runner ended"
        assert slots.free == 64, "slots were lost"
        assert rollout.sequences == 0
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)


class Overheard:
    """The engine, and the requests that reach it; the n-th one's result is held until `until(n)` returns."""

    def __init__(self, engine: Engine, until: Callable[[int], Awaitable[object]] | None = None) -> None:
        self._engine = engine
        self._until = until
        self.settings = engine.settings
        self.requests: list[SampleRequest] = []

    async def sample(self, wanted: SampleRequest) -> Sampled:
        self.requests.append(wanted)
        number = len(self.requests)
        sampled = await self._engine.sample(wanted)
        if self._until is not None:
            await self._until(number)
        return sampled


def group_of(task: str, *, adapter: AdapterRef | None = None, max_tokens: int = 24, **changes: Any) -> GroupContext:
    values: dict[str, Any] = {
        "size": 4,
        "version": adapter.version if adapter else 0,
        "adapter": adapter,
        "family": "reasoning_gym",
        "environment": EnvironmentSection(name="reasoning_gym:sum"),
        "sampling": Sampling(temperature=0.9, max_tokens=max_tokens),
        "limits": Limits(max_prompt_tokens=64, max_turns=4, max_reply_tokens=32),
        "seed": 5,
        "deadline_s": time.time() + 300,
    }
    return group_context(task, **(values | changes))


def first_turns(members: Sequence[int], messages: Sequence[ChatMessage] = QUESTION) -> list[TurnRequest]:
    return [
        TurnRequest(member=member, turn=0, transcript=TokenRecord(), messages=list(messages), state=bytes([member])) for member in members
    ]


def agrees(oracle: Oracle, turn: SampledTurn, adapter: str | None, temperature: float) -> None:
    """The transcript's log-probabilities are those of the sampled tokens, and 0 elsewhere."""
    record = turn.transcript
    sampled_T = record.sampled_T().astype(bool)
    scored_T = np.concatenate([[0.0], oracle.logprobs(record.ids_T().tolist(), adapter, temperature)])
    np.testing.assert_allclose(record.logprobs_T(), np.where(sampled_T, scored_T, 0.0), atol=1e-4)


def lasting(seconds: float) -> Callable[[float], float]:
    """Moments of this length, however long the sampling took."""
    return lambda _: seconds


def status(task: str, state: str) -> TaskStatus:
    return TaskStatus(
        tenant="acme", task=task, name=task, pool="tiny", state=state, version=1, steps=2, submitted_s=time.time(), updated_s=time.time()
    )


def updated(ref: AdapterRef) -> WeightUpdated:
    return WeightUpdated(
        tenant="acme",
        task=ref.task,
        pool="tiny",
        version=ref.version,
        adapter=ref,
        checkpoint=CheckpointRef(name=f"{ref.name}.checkpoint-0", size_bytes=0, sha256="0" * 64),
        metrics={},
        trained_tokens=0,
        started_s=time.time(),
        finished_s=time.time(),
        trained="0" * 64,
    )
