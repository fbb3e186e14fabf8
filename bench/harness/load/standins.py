"""A sampler and a trainer that take injected times and compute nothing, on the real ones' subjects.

The sampler is the real rollout service over an engine that waits: it answers as many sequences at once as it has places, later
turns first, and the rest queue. The trainer reads its batch's messages from the stream as the real one does, and takes one step
at a time. Both record their times in a `Trace`.
"""

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from bench.harness.load.injected import Times, turn_s
from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.fairness.fair_slots import FairSlots
from common.messages import (
    AdapterRef,
    BlobRef,
    Canary,
    CheckpointRef,
    ReplicaReport,
    TokenRecord,
    TrainBatch,
    TrajectoriesScored,
    TurnRequest,
    WeightUpdated,
)
from common.runtime.process import collect_rarely
from common.runtime.service import report_replica
from common.spec import Limits
from common.task_states import TaskStates
from common.tool_calls import UNOPENED, Thoughts
from rollout_svc.engine.engine import Sampled, SampleRequest
from rollout_svc.service import Rollout

POOL = "bench"
CONTEXT_TOKENS = 4096
PROMPT_TOKENS, LATER_TOKENS, REPLY_TOKENS = 32, 8, 16
BATCHES_IN_HAND = 3


@dataclass(frozen=True)
class SampledSpan:
    """One turn in the sampler. Times are Unix seconds."""

    task: str
    group: int
    member: int
    turn: int
    asked_at: float
    started_at: float
    ended_at: float
    environment_s: float
    """Seconds that the environment will take after it."""


@dataclass(frozen=True)
class TrainedSpan:
    """One step in the trainer."""

    task: str
    version: int
    asked_at: float
    started_at: float
    ended_at: float


@dataclass
class Trace:
    sampled: list[SampledSpan] = field(default_factory=list)
    trained: list[TrainedSpan] = field(default_factory=list)


class WaitingEngine:
    """Samples by waiting. Tokens are made up, but for the first: the environment's milliseconds."""

    def __init__(self, times: Times, places: int, trace: Trace) -> None:
        self._times = times
        self._free = places
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = count()
        self._trace = trace
        self.settings = _EngineSettings()

    async def sample(self, request: SampleRequest) -> Sampled:
        task, group, member, turn = request.request_id.rsplit(":", 3)
        sample_s, environment_s = turn_s(self._times, task, int(group), int(member), int(turn))
        asked_at = time.time()
        await self._take_place(request.priority)
        started_at = time.time()
        try:
            if sample_s:
                await asyncio.sleep(sample_s)
        finally:
            self._leave_place()
        self._trace.sampled.append(SampledSpan(task, int(group), int(member), int(turn), asked_at, started_at, time.time(), environment_s))
        return Sampled([round(environment_s * 1000), *range(1, REPLY_TOKENS)], [-1.0] * REPLY_TOKENS, "stop")

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Nothing to abort: turns are short."""

    async def _take_place(self, priority: int) -> None:
        if self._free > 0:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        await turn

    def _leave_place(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                return turn.set_result(None)
        self._free += 1
        return None


@dataclass(frozen=True)
class _EngineSettings:
    context_tokens: int = CONTEXT_TOKENS


class NoChat:
    """Prompts of fixed lengths, and replies that spell their first token."""

    stop_ids = (0,)

    async def prompt(self, request: TurnRequest, limits: Limits, arguments: object) -> TokenRecord:
        del limits, arguments
        return request.transcript.with_context([1] * (LATER_TOKENS if len(request.transcript) else PROMPT_TOKENS))

    def stop_strings(self, strings: Sequence[str]) -> None:
        del strings

    def thoughts_after(self, ids: Sequence[int], marks: object) -> Thoughts:
        del ids, marks
        return UNOPENED

    def text(self, ids: Sequence[int]) -> str:
        return str(ids[0])


class NoAdapters:
    """Adapters without files: every version is present."""

    @asynccontextmanager
    async def using(self, ref: AdapterRef | None) -> AsyncGenerator[str | None]:
        yield ref.name if ref else None

    def end(self, task: str) -> None:
        """Nothing is held."""


class WaitingTrainer:
    """Trains one step at a time, of those that arrived in the real trainer's order."""

    def __init__(self, bus: Bus, train_s: float, trace: Trace) -> None:
        self._bus = bus
        self._train_s = train_s
        self._trace = trace
        self._device = FairSlots(1)

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        asked_at = time.time()
        sequences = {member.sequence for group in batch.groups for member in group.members}
        messages = [(await self._bus.streams.read(streams.SCORED, sequence)).read(TrajectoriesScored) for sequence in sorted(sequences)]
        await self._device.acquire(batch.claimant)
        started_at = time.time()
        try:
            if self._train_s:
                await asyncio.sleep(self._train_s)
            span = TrainedSpan(batch.task, batch.version, asked_at, started_at, time.time())
        finally:
            self._device.release(batch.claimant, time.time() - started_at)
        self._trace.trained.append(span)
        tokens = sum(len(member.transcript) for message in messages for member in message.members)
        yield updated(batch, span, tokens)


def updated(batch: TrainBatch, span: TrainedSpan, tokens: int) -> Outgoing:
    """The weight update of a step."""
    version = batch.version + 1
    blob = BlobRef(name=f"{batch.task}.v{version}.adapter-0", size_bytes=1, sha256="0" * 64)
    update = WeightUpdated(
        tenant=batch.tenant,
        task=batch.task,
        pool=batch.pool,
        version=version,
        adapter=AdapterRef(task=batch.task, version=version, rank=8, blob=blob, canary=Canary(ids=b"\0" * 64, logprobs=b"\0" * 60)),
        checkpoint=CheckpointRef(name=f"{batch.task}.v{version}.checkpoint-0", size_bytes=1, sha256="0" * 64),
        trained=batch.digest,
        metrics={"loss": 0.0},
        trained_tokens=tokens,
        started_s=span.started_at,
        finished_s=span.ended_at,
    )
    return Outgoing(streams.weight_updated(batch.pool, batch.task), update, f"{batch.task}:v{version}:weights")


@asynccontextmanager
async def at_work(bus: Bus, times: Times, places: int, trace: Trace, *, train_in_turn: bool = True) -> AsyncGenerator[None]:
    """Sampler and trainer, reporting as replicas do, until the block ends."""
    collect_rarely()
    engine: Any = WaitingEngine(times, places, trace)
    chat: Any = NoChat()
    adapters: Any = NoAdapters()
    slots, tasks = Slots(4 * places), TaskStates()
    rollout = Rollout(engine, chat, adapters, tasks, slots, lambda _: bus.clock.now_s())
    trainer = WaitingTrainer(bus, times.train_s, trace)
    report = ReplicaReport(
        replica="sampler",
        service="rollout",
        pool=POOL,
        sequences=places,
        kv_tokens=places * CONTEXT_TOKENS,
        busy={"sequences": 0},
        template_variables=[],
    )
    runners = [
        asyncio.create_task(report_replica(bus, lambda: report.model_copy(update={"busy": {"sequences": rollout.sequences}}))),
        asyncio.create_task(rollout.follow_tasks(bus)),
        asyncio.create_task(bus.consume(streams.rollout_samples(POOL), rollout.handle, slots)),
        asyncio.create_task(bus.consume(streams.trainer_batches(POOL), trainer.handle, Slots(BATCHES_IN_HAND if train_in_turn else 64))),
    ]
    try:
        yield
    finally:
        for runner in runners:
            runner.cancel()
        await asyncio.gather(*runners, return_exceptions=True)
