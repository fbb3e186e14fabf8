"""Answers to orders. They are sent in sequence, and resent until NATS has stored them; the reconciler does not wait for that."""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

import structlog

from common import streams
from common.accelerators import ExecutorState, Tier
from common.bus import Outgoing
from common.errors import Reject, Retry
from common.leases.context import ExecutorContext
from common.messages import LeaseDone, ProcessLife
from common.messages.lives import life_key
from common.resilience.event_loop import is_set_within
from common.streams import HISTORY_BUCKET

MAX_UNSENT = 64
"""Maximum answers that wait while NATS is unavailable; beyond it the oldest is dropped."""
RETRY_S = 0.5

log = structlog.get_logger()


@dataclass(frozen=True)
class Outcome:
    """Outcome of an order."""

    epoch: int
    state: ExecutorState
    from_tier: Tier
    move_s: float | None = None
    """Seconds of the move; None if nothing was moved."""
    freed_bytes: int | None = None
    failure: str | None = None
    lacks_memory: bool | None = None
    """Whether a failed wake lacked memory; None for other outcomes."""
    reports_work: bool = False
    """Whether the answer includes the work done since the wake."""


async def death_before(context: ExecutorContext) -> str | None:
    """Cause of death of this executor's previous process, as recorded in NATS (`common/messages/lives.py`); None if the process was ordered
    to end, or the cause is unknown."""
    with suppress(Retry, Reject):
        life = await context.bus.kv.get(HISTORY_BUCKET, life_key(context.me.service, context.me.replica), ProcessLife)
        return (life.cause or None) if life is not None else None
    return None


class Answers:
    def __init__(self, context: ExecutorContext) -> None:
        self._context = context
        self._unsent: deque[LeaseDone] = deque(maxlen=MAX_UNSENT)
        self._added = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()

    def add(self, outcome: Outcome) -> None:
        done = self._done(outcome)
        self._unsent.append(done)
        self._sent.clear()
        self._added.set()
        about = done.model_dump(mode="json", include={"executor", "epoch", "state", "from_tier", "tier", "move_s", "failure"})
        log.info("lease_done", **about)

    def _done(self, outcome: Outcome) -> LeaseDone:
        me, executable, tally = self._context.me, self._context.executable, self._context.tally
        done = LeaseDone(
            accelerator=me.accelerator,
            executor=me.executor,
            pool=me.pool,
            replica=me.replica,
            epoch=outcome.epoch,
            state=outcome.state,
            from_tier=outcome.from_tier,
            tier=executable.tier,
            move_s=outcome.move_s,
            at_s=self._context.bus.clock.now_s(),
            device_bytes=executable.device_bytes,
            host_bytes=executable.host_bytes,
            freed_bytes=outcome.freed_bytes,
            failure=outcome.failure,
            lacks_memory=outcome.lacks_memory,
        )
        if not outcome.reports_work:
            return done
        tally.look()
        ms = {"busy_ms": round(1000 * tally.busy_s), "score_ms": round(1000 * tally.score_s)}
        return done.model_copy(update={"served": dict(tally.by_task), **ms, "pieces": tally.pieces})

    async def flush(self, timeout_s: float) -> None:
        """Wait until all answers are sent, at most `timeout_s` seconds, before this process ends."""
        if not await is_set_within(self._sent, timeout_s):
            log.warning("answers_lost", count=len(self._unsent))

    async def run(self) -> None:
        """Send answers until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._unsent:
                await self._send(self._unsent[0])
            self._sent.set()

    async def _send(self, done: LeaseDone) -> None:
        subject = streams.lease_done(done.accelerator, done.executor)
        message_id = f"{subject}:{done.replica}:{done.epoch}:{done.state}:{done.at_s!r}"
        try:
            await self._context.bus.publish(Outgoing(subject, done, message_id))
        except Reject as error:
            log.error("answer_refused", subject=subject, reason=str(error))
        except Retry as error:
            log.warning("answer_delayed", subject=subject, reason=str(error))
            await asyncio.sleep(RETRY_S)
            return
        if self._unsent and self._unsent[0] is done:  # it may have been dropped meanwhile
            self._unsent.popleft()
