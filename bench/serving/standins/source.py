"""A replica of the sampler's own serving, through NATS, with a committed source of tokens in place of its engine."""

import asyncio
import random
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.serving.stacks import POOL, SEQUENCES
from bench.serving.standins.cases import Case, case_of
from common.bus import Bus, Slots
from common.messages import AdapterRef, ReplicaReport
from common.runtime.service import report_replica
from rollout_svc.chat import Chat
from rollout_svc.engine_stream import StreamPart, StreamRequest
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.replies import Replies
from rollout_svc.serving.request import Means, Sample
from rollout_svc.serving.service import Serving

REPLICA = "source"
CONTEXT = 1024
MARK = re.compile(r"case (\d+)")


class NoAdapters:
    @asynccontextmanager
    async def using(self, ref: AdapterRef | None, *, serving: bool = False) -> AsyncGenerator[str | None]:  # noqa: ARG002
        yield None

    def is_loaded(self, ref: AdapterRef) -> bool:  # noqa: ARG002
        return True


class Source:
    """Samples the case that the prompt names, in parts of random sizes with random pauses, which flushes fall between."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.rng = random.Random(7)

    def case(self, ids: list[int]) -> Case:
        found = MARK.search(self._chat.decode(ids))
        assert found is not None
        return case_of(int(found[1]), self._chat)

    async def sample(self, request: StreamRequest) -> AsyncGenerator[StreamPart]:
        ids, place = self.case(list(request.ids)).ids[: request.max_tokens], 0
        while place < len(ids):
            part = ids[place : place + self.rng.choice((1, 1, 1, 2, 3, 5))]
            place += len(part)
            await asyncio.sleep(self.rng.choice((0.0, 0.0, 0.0, 0.004, 0.007)))
            yield StreamPart(part, [], "length" if place >= len(ids) else None, 0)


@asynccontextmanager
async def replica(url: str, creds: Path, chat: Chat, sample: Sample) -> AsyncGenerator[Callable[[], bool]]:
    """A replica in this process, for the base model, while the block lasts; yields whether it has requests."""
    nothing: Any = NoAdapters()
    async with await Bus.connect(url, "bench-source", creds=creds) as bus:
        means = Means(chat, nothing, sample, Admission(SEQUENCES, 4), CONTEXT, None, "source")
        serving = Serving(means, Replies(REPLICA, bus.requests.tell), Slots(4 * SEQUENCES), bus.clock.now_s)
        report = ReplicaReport(replica=REPLICA, service="rollout", pool=POOL, sequences=SEQUENCES, kv_tokens=1, serves=True)
        work = [asyncio.create_task(serving.run(bus, POOL, REPLICA)), asyncio.create_task(report_replica(bus, lambda: report))]
        try:
            yield lambda: serving.requests > 0
        finally:
            for one in work:
                one.cancel()
            await asyncio.gather(*work, return_exceptions=True)
