"""Stage times of every turn of a running stack, from its messages: the `Trace` that the stand-ins record.

A turn is with the sampler from its request to its answer, then with its environment until the next request or the score. These
times include queues, codec and NATS, as a task sees them.

A plain NATS subscription receives each message as JetStream stores it, so it needs no second consumer on a work queue. Bodies are
decoded after the run, which keeps the tap cheap.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nats.aio.msg import Msg

from bench.harness.load.standins import SampledSpan
from common.bus.transport.address import NatsClient
from common.messages import GroupContext, SampleTurns, TrajectoriesScored, TurnsSampled

SUBJECTS = ("prompts.sample.>", "trajectories.turn.>", "trajectories.scored.>")

DRAIN_S = 10.0
Turn = tuple[str, int, int, int]
"""(task, group, member, turn)."""


@dataclass(frozen=True)
class Heard:
    """A message, with `at_s` of this host's clock."""

    at_s: float
    subject: str
    body: bytes


async def plain_client(url: str, name: str, creds: Path | None) -> NatsClient:
    """A connection for what the services' own has no call for. `creds`: None where NATS wants no key."""
    client = NatsClient(None, needs_tls=False)
    await client.connect(url, name=name, user_credentials=str(creds) if creds else None)
    return client


@asynccontextmanager
async def overheard(url: str, creds: Path | None) -> AsyncGenerator[list[Heard]]:
    """Everything on SUBJECTS while the block lasts, in a list that grows."""
    heard: list[Heard] = []

    async def note(message: Msg) -> None:
        heard.append(Heard(time.time(), message.subject, message.data))

    client = await plain_client(url, "bench-tap", creds)
    try:
        for subject in SUBJECTS:
            await client.subscribe(subject, cb=note)
        await client.flush()
        yield heard
    finally:
        try:
            async with asyncio.timeout(DRAIN_S):  # seldom, on a busy machine, nats-py's never ends
                await client.drain()
        except TimeoutError:
            await client.close()


def sampled_spans(heard: Sequence[Heard]) -> list[SampledSpan]:
    """Every completed turn, from the first message of each kind; redeliveries are ignored."""
    asked: dict[Turn, float] = {}
    answered: dict[Turn, float] = {}
    scored: dict[tuple[str, int, int], float] = {}
    for one in heard:
        if one.subject.startswith("prompts.sample."):
            request = SampleTurns.decode(one.body)
            for wanted in request.members:
                asked.setdefault((*_group(request.group), wanted.member, wanted.turn), one.at_s)
        elif one.subject.startswith("trajectories.turn."):
            answer = TurnsSampled.decode(one.body)
            for turn in answer.members:
                answered.setdefault((*_group(answer.group), turn.member, turn.turn), one.at_s)
        else:
            end = TrajectoriesScored.decode(one.body)
            for member in end.members:
                scored.setdefault((*_group(end.group), member.member), one.at_s)
    found: list[SampledSpan] = []
    for (task, group, member, turn), answered_at in answered.items():
        asked_at = asked.get((task, group, member, turn))
        left_at = asked.get((task, group, member, turn + 1), scored.get((task, group, member)))
        if asked_at is not None and left_at is not None:
            found.append(SampledSpan(task, group, member, turn, asked_at, asked_at, answered_at, max(0.0, left_at - answered_at)))
    return found


def _group(context: GroupContext) -> tuple[str, int]:
    return context.task, context.group
