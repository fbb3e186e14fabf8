"""Replicas that serve through a real NATS, with a source of tokens in place of an engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from unittest.mock import patch

import numpy as np

from common.bus import Bus, Slots
from common.errors import Reject, Unavailable
from common.messages import AdapterRef, Message, ReplicaReport, ServedDelta, ServedMessage, ServedSampling, ServeRequest
from common.pools import Goals
from common.runtime.service import report_replica
from gateway_svc.serving.client import Serving as Client
from rollout_svc.engine.stream import StreamPart, StreamRequest
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.replies import Replies
from rollout_svc.serving.request import ServingContext
from rollout_svc.serving.service import Serving
from rollout_svc.text.chat import Chat
from tests.support.rollout.requests import POOL
from tests.support.waiting import at_work, eventually

CHAT = Chat.load(POOL.model)
QUESTION = [ServedMessage(role="user", content="What is 3 + 4?")]
PACE_S = 0.003
CONTEXT = 512
PATIENT_S = 600.0
"""Silence that a gateway bears: a replica, or NATS, that is stopped for some seconds is none that is dead."""


class Source:
    """Tokens that depend on those before them only, as greedy ones do."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.begun: list[StreamRequest] = []
        self.may_begin = asyncio.Event()
        self.may_begin.set()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.breaks: Callable[[StreamRequest, int], bool] = lambda request, place: False
        """Whether a request crashes before this place of its reply."""

    async def sample(self, request: StreamRequest) -> AsyncGenerator[StreamPart]:
        self.begun.append(request)
        self.running.add(request.request_id)
        try:
            await self.may_begin.wait()
            ids = list(request.ids)
            for place in range(request.max_tokens):
                ids.append(following(ids))
                await asyncio.sleep(PACE_S)
                if place:
                    await self.may_go_on.wait()
                if self.breaks(request, place):
                    raise RuntimeError("as the test wants it")
                yield StreamPart([ids[-1]], [], "length" if place == request.max_tokens - 1 else None, 2)
        finally:
            self.running.discard(request.request_id)


def following(ids: list[int]) -> int:
    """The token after these; never one that ends a turn."""
    return 3 + (sum(ids[-3:]) * 31 + len(ids) * 7) % (CHAT.vocabulary - 3)


class Adapters:
    """Of which one version is refused."""

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.calm = asyncio.Event()
        self.calm.set()
        self.load_s = 0.0
        """How long the first use of a version takes."""

    @asynccontextmanager
    async def using(self, ref: AdapterRef | None, *, serving: bool = False) -> AsyncGenerator[str | None]:
        assert serving
        if ref is not None and ref.version == 13:
            raise Reject("engine and trainer disagree about version 13")
        if ref is not None and ref.version == 14:
            raise Unavailable("the blob store is away")
        if ref is not None and not self.is_loaded(ref):
            await asyncio.sleep(self.load_s)
            self.loaded.add(ref.engine_name)
        yield ref.engine_name if ref else None

    def is_loaded(self, ref: AdapterRef) -> bool:
        return ref.version < 13 and (not self.load_s or ref.engine_name in self.loaded)


class Wire:
    """NATS's core between a replica and its gateways, which may lose messages or repeat them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.told = 0
        self.lose: Callable[[Message], bool] = lambda message: False
        self.times = 1

    async def tell(self, subject: str, message: Message) -> None:
        self.told += 1
        if not self.lose(message):
            for _ in range(self.times):
                await self._bus.requests.send(subject, message)


class Replica:
    def __init__(
        self,
        bus: Bus,
        name: str,
        sequences: int = 4,
        adapters: int = 2,
        means: ServingContext | None = None,
        goals: Goals | None = None,
    ) -> None:
        """`means`: of a real engine, in place of the source."""
        self.name, self.bus = name, bus
        self.source, self.wire, self.slots = Source(), Wire(bus), Slots(4 * sequences)
        self.adapters = Adapters()
        stand_in: Any = self.adapters
        means = means or ServingContext(CHAT, stand_in, self.source.sample, Admission(sequences, adapters), CONTEXT, None, "source", goals)
        self.serving = Serving(means, Replies(name, self.wire.tell), self.slots, bus.clock.now_s)
        self.tally = self.serving.tally
        self.work: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.work = asyncio.create_task(self.serving.run(self.bus, "tiny", self.name))

    async def stop(self) -> None:
        assert self.work is not None
        self.work.cancel()
        with suppress(asyncio.CancelledError):
            await self.work

    async def die(self) -> None:
        """Without a word."""
        self.wire.lose = lambda message: True
        await self.stop()


class Stage:
    """Replicas and one gateway."""

    def __init__(self, bus: Bus, client: Client) -> None:
        self.bus, self.client = bus, client
        self.replicas: list[Replica] = []
        self._numbers = iter(range(10**6))

    async def replica(self, **options: Any) -> Replica:
        replica = Replica(self.bus, f"r{len(self.replicas)}", **options)
        self.replicas.append(replica)
        replica.start()
        await asyncio.sleep(0)
        return replica

    def request(self, max_tokens: int | None = 60, *, wait_s: float = 60.0, **changes: Any) -> ServeRequest:
        values: dict[str, Any] = {
            "request": f"q{next(self._numbers)}",
            "attempt": 0,
            "gateway": self.client.gateway,
            "tenant": "acme",
            "key": None,
            "pool": "tiny",
            "adapter": None,
            "messages": QUESTION,
            "sampling": ServedSampling(max_tokens=max_tokens, temperature=0, seed=7),
            "first_token_by_s": self.bus.clock.now_s() + wait_s,
        }
        return ServeRequest(**(values | changes))

    async def answer(self, request: ServeRequest) -> "Answer":
        return Answer([delta async for delta in self.client.deltas(request)])

    @property
    def busy(self) -> Replica:
        """The replica that samples."""
        [found] = [replica for replica in self.replicas if replica.source.running]
        return found


class Answer:
    def __init__(self, deltas: list[ServedDelta]) -> None:
        self.deltas = deltas
        self.ids = [token for delta in deltas for token in np.frombuffer(delta.ids, dtype="<i4").tolist()]
        self.text = "".join(delta.text for delta in deltas)
        self.last = deltas[-1]


async def expected(request: ServeRequest) -> list[int]:
    """The undisturbed reply."""
    ids, _ = await CHAT.conversation([{"role": "user", "content": "What is 3 + 4?"}], [], {}, CONTEXT)
    assert request.sampling.max_tokens is not None
    for _ in range(request.sampling.max_tokens):
        ids.append(following(ids))
    return ids[-request.sampling.max_tokens :]


@asynccontextmanager
async def performing(bus: Bus, *, reports: bool = True, silent_s: float = PATIENT_S, **options: Any) -> AsyncIterator[Stage]:
    """`silent_s`: seconds of silence after which the gateway takes a replica for dead."""
    client = Client(bus, "g0", **options)
    stage = Stage(bus, client)
    async with AsyncExitStack() as stack:
        stack.enter_context(patch("gateway_svc.serving.progress.SILENT_S", silent_s))
        if reports:
            await stack.enter_async_context(at_work(report_replica(bus, lambda: ReplicaReport(replica="g0", service="gateway"))))
        await stack.enter_async_context(at_work(client.run()))
        try:
            yield stage
            await eventually(lambda: not any(replica.source.running for replica in stage.replicas), timeout_s=30)
            assert client.requests == 0
        finally:
            for replica in stage.replicas:
                if replica.work is not None and not replica.work.done():
                    await replica.stop()
