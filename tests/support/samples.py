"""Samples as a trainer keeps them, and a replica that gives texts of their tokens."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np

from common import streams
from common.bus import Bus, Outgoing, Slots
from common.messages import KeptAttempt, ReplicaReport, StepSamples, TokenRecord
from common.runtime.service import report_replica
from rollout_svc.serving.admission import Admission
from rollout_svc.serving.replies import Replies
from rollout_svc.serving.request import ServingContext
from rollout_svc.serving.service import Serving
from rollout_svc.text.chat import Chat
from tests.support.waiting import at_work

MODEL = "models/tiny"


def kept_attempt(ids: Sequence[int] = (5, 6, 7, 8), sampled: Sequence[int] = (0, 0, 1, 1), **changes: Any) -> KeptAttempt:
    """Sampled tokens have the log-probabilities −0.5, −1, …; the trainer's are 0.125 lower."""
    sampled_T = np.asarray(sampled, np.uint8)
    logprobs_T = np.where(sampled_T, -0.5 * np.cumsum(sampled_T), 0).astype("<f4")
    base: dict[str, Any] = {
        "group": 3,
        "member": 0,
        "version": 0,
        "reward": 1.0,
        "components": {"correct": 1.0},
        "advantage": 0.75,
        "finish": "stop",
        "turns": 1,
        "tokens": TokenRecord(ids=np.asarray(ids, "<i4").tobytes(), logprobs=logprobs_T.tobytes(), sampled=sampled_T.tobytes()),
        "trainer_logprobs": np.where(sampled_T, logprobs_T - 0.125, 0).astype("<f4").tobytes(),
    }
    return KeptAttempt(**base | changes)


def step_samples(task: str, version: int, attempts: Sequence[KeptAttempt] = (), **changes: Any) -> StepSamples:
    base: dict[str, Any] = {"tenant": "acme", "task": task, "pool": "tiny", "version": version}
    base["attempts"] = list(attempts) or [kept_attempt()]
    return StepSamples(**base | changes)


async def keep(bus: Bus, *found: StepSamples) -> None:
    for one in found:
        subject = streams.samples(one.pool, one.task, one.version)
        await bus.publish(Outgoing(subject, one, f"{one.task}:v{one.version}:samples"))


@asynccontextmanager
async def texts_replica(bus: Bus) -> AsyncGenerator[Chat]:
    """The sampler's side of serving, with the tokenizer of the tiny model and no engine."""
    chat = await asyncio.to_thread(Chat.load, MODEL)
    none = cast(Any, None)
    means = ServingContext(chat, none, none, Admission(1, 1), 512, None, "none")
    serving = Serving(means, Replies("texts", bus.requests.send), Slots(4), bus.clock.now_s)
    report = ReplicaReport(replica="texts", service="rollout", pool="tiny", serves=True)
    async with at_work(report_replica(bus, lambda: report)), at_work(serving.run(bus, "tiny", "texts")):
        yield chat
