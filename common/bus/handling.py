"""Handles one message: the outcome is an acknowledgement, a redelivery or a dead letter.

Failures and hand-backs of a message in this process are counted here, because NATS counts only deliveries, whatever their outcome.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

import structlog
from nats.aio.msg import Msg

from common.bus import metrics
from common.bus.delivery import MAX_PAYLOAD_BYTES, TRACE_HEADER, Delivery, Handler, Outgoing, Slots, current_trace, delivery_of, trace
from common.bus.pull import Pull
from common.caches import LRUCache
from common.errors import MEMORY_DELAY_S, Fatal, HandedBack, Reject, Retry, Unavailable
from common.messages import DeadLetter
from common.resilience import crashpoints
from common.resilience.backoff import Backoff, jittered
from common.streams import Consumer, failed, token

MAX_DEAD_LETTER_BYTES = MAX_PAYLOAD_BYTES - 256 * 1024
"""Maximum bytes of a body that a dead letter keeps: a larger one would make the dead letter itself too large."""

log = structlog.get_logger()


class Handling:
    def __init__(self, publish: Callable[[Outgoing], Awaitable[int]], backoff: Backoff) -> None:
        self._publish = publish
        self._backoff = backoff
        self._outcomes = Outcomes()

    async def handle(self, pull: Pull, message: Msg, handler: Handler, slots: Slots | None) -> None:
        """Run the handler for one message. Raises: Fatal from the handler."""
        consumer = pull.consumer
        delivery = delivery_of(message)
        previous = current_trace.set(trace(delivery.headers.get(TRACE_HEADER)))
        started = time.monotonic()
        outcome = "done"
        try:
            with structlog.contextvars.bound_contextvars(**_bindings(delivery, consumer)):
                try:
                    deliveries = delivery.attempt - self._outcomes.of(consumer, message).handed_back
                    if deliveries > consumer.max_deliveries:
                        raise Reject(f"delivered {deliveries - 1} times without an answer; it may kill the process that handles it")
                    await self._run_handler(delivery, handler)
                    crashpoints.reached("before_ack")
                    self._outcomes.forget(consumer, message)
                    pull.done(message)
                except asyncio.CancelledError:
                    outcome = "returned"
                    await asyncio.shield(pull.redeliver(message, delay_s=0))
                    raise
                except Fatal as error:
                    outcome = "fatal"
                    log.error("fatal", error=str(error))
                    pull.stop_requesting()  # or this process would receive the message again while it shuts down
                    await pull.redeliver(message, delay_s=0)
                    raise
                except Reject as error:
                    outcome = "rejected"
                    await self._dead_letter(pull, message, delivery, str(error))
                except HandedBack:
                    outcome = "returned"
                    self._outcomes.handed_back(consumer, message)
                    await pull.withdraw()  # or the rest of a request would bring the message back to this process
                    await pull.redeliver(message, delay_s=0)
                except (Retry, MemoryError) as error:
                    outcome = "retried"
                    error = error if isinstance(error, Retry) else Retry("this process has no memory left", delay_s=MEMORY_DELAY_S)
                    failures = self._outcomes.failed(consumer, message)
                    if failures >= consumer.max_attempts:
                        await self._dead_letter(pull, message, delivery, f"gave up after {failures} attempts: {error}")
                    else:
                        log.warning("message_retried", reason=str(error), attempt=failures, delay_s=error.delay_s)
                        await pull.redeliver(message, delay_s=jittered(error.delay_s))
                except Exception as error:
                    outcome = "failed"
                    failures = self._outcomes.failed(consumer, message)
                    log.exception("handler_failed", attempt=failures)
                    if failures >= consumer.max_attempts:
                        await self._dead_letter(pull, message, delivery, f"{type(error).__name__}: {error}")
                    else:
                        await pull.redeliver(message, delay_s=self._backoff.pause_s(failures))
        finally:
            current_trace.reset(previous)
            metrics.HANDLED.labels(consumer.stage, outcome).inc()
            metrics.HANDLING_S.labels(consumer.stage).observe(time.monotonic() - started)
            if slots is not None:
                slots.release()

    async def _run_handler(self, delivery: Delivery, handler: Handler) -> None:
        """Publish the messages that the handler yields; rerun it, without limit, while a server is unavailable."""
        waits = 0
        while True:
            try:
                async with aclosing(cast(AsyncGenerator[Outgoing], handler(delivery))) as results:
                    async for out in results:
                        crashpoints.reached("before_publish")
                        await self._publish(out)
                return
            except Unavailable as error:
                waits += 1
                log.warning("server_away", reason=str(error), waits=waits)
                await asyncio.sleep(self._backoff.pause_s(waits))

    async def _dead_letter(self, pull: Pull, message: Msg, delivery: Delivery, reason: str) -> None:
        """Store a message that cannot be handled, with the reason, for users and the scheduler."""
        consumer = pull.consumer
        log.error("dead_letter", subject=delivery.subject)  # the reason may quote a user, and logs outlive what users delete
        task = token(delivery.subject, consumer.task_token)
        letter = DeadLetter(
            stage=consumer.stage,
            subject=delivery.subject,
            reason=reason,
            attempts=delivery.attempt,
            headers=dict(delivery.headers),
            body=delivery.body if len(delivery.body) <= MAX_DEAD_LETTER_BYTES else b"",
            sequence=delivery.sequence,
        )
        out = Outgoing(failed(consumer.stage, task or "none"), letter, f"failed:{consumer.stream}:{consumer.name}:{delivery.sequence}")
        try:
            try:
                await self._publish(out)
            except Reject:  # its headers are too large, or cannot be written by a client
                await self._publish(replace(out, message=letter.model_copy(update={"headers": {}, "body": b""})))
        except Retry as error:  # NATS is unavailable: the message is redelivered, and dead-lettered then
            log.warning("message_retried", reason=str(error), attempt=delivery.attempt, delay_s=error.delay_s)
            await pull.redeliver(message, delay_s=error.delay_s)
        else:
            self._outcomes.forget(consumer, message)
            await pull.terminate(message)


def _bindings(delivery: Delivery, consumer: Consumer) -> dict[str, str]:
    bound = {"stage": consumer.stage, "trace": delivery.headers.get(TRACE_HEADER, "")[3:35]}
    if task := token(delivery.subject, consumer.task_token):
        bound["task"] = task
        if trajectory := token(delivery.subject, consumer.task_token + 1):
            bound["trajectory"] = trajectory
    return bound


KEPT = 10_000
"""Maximum messages whose history is kept. The oldest histories are dropped: another replica may have finished their messages."""

_Key = tuple[str, str, int, datetime]
"""Stream, consumer, sequence in the stream, and time of storage: a restored stream reuses sequences."""


@dataclass
class DeliveryHistory:
    """Outcomes of a message's earlier deliveries to this process."""

    failed: int = 0
    """Deliveries whose handler raised Retry, or an unexpected exception."""
    handed_back: int = 0


class Outcomes:
    """Delivery histories in memory. After a restart, or in another replica, counts start at 0; `Consumer.max_deliveries` bounds the
    deliveries to all processes together."""

    def __init__(self, kept: int = KEPT) -> None:
        self._pasts: LRUCache[_Key, DeliveryHistory] = LRUCache(kept)

    def __len__(self) -> int:
        return len(self._pasts)

    def of(self, consumer: Consumer, message: Msg) -> DeliveryHistory:
        """The message's history; zero counts if it has neither failed nor been handed back here."""
        return self._pasts.peek(_key(consumer, message)) or DeliveryHistory()

    def failed(self, consumer: Consumer, message: Msg) -> int:
        """Count a failure; returns the number of failures."""
        past = self._noted(consumer, message)
        past.failed += 1
        return past.failed

    def handed_back(self, consumer: Consumer, message: Msg) -> None:
        self._noted(consumer, message).handed_back += 1

    def forget(self, consumer: Consumer, message: Msg) -> None:
        """Drop the history of a message that was handled, or became a dead letter."""
        self._pasts.pop(_key(consumer, message))

    def _noted(self, consumer: Consumer, message: Msg) -> DeliveryHistory:
        return self._pasts.get(_key(consumer, message), DeliveryHistory)


def _key(consumer: Consumer, message: Msg) -> _Key:
    return consumer.stream, consumer.name, message.metadata.sequence.stream, message.metadata.timestamp
