"""Serving's handler: accepts requests of gateways, and cancels those without a waiting client.

A request is acknowledged when it is accepted, because its gateway retries if this replica falls silent. So redelivered messages and older
attempts are ignored; a newer attempt replaces the running one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import numpy as np
import structlog
from prometheus_client import Gauge

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.errors import Fatal, HandedBack, Reject, Unavailable
from common.goals import GoalTally
from common.messages import CancelServing, Failure, ReplicaReport, ServedDelta, ServeRequest, TextsRequest, TokenTexts
from common.periodic import run_forever
from common.streams import KIND_HEADER
from rollout_svc.serving.goals import Watch, goals_of
from rollout_svc.serving.prompts import Refused
from rollout_svc.serving.replies import Address, Replies
from rollout_svc.serving.request import ServingContext, answer
from rollout_svc.text.chat import Chat

TAKEN_PER_SEQUENCE = 4
"""Accepted requests per sequence: fairness applies among the accepted ones."""
GATEWAYS_S = 2.5
"""Seconds between checks for dead gateways, whose entries expire after REPLICA_TTL_S."""
LISTEN_S = 60.0
LISTEN_AGAIN_S = 1.0

SERVING = Gauge("marlaas_rollout_serving", "Requests to versions that this replica has, waiting ones included")

log = structlog.get_logger()


class Serving:
    """The requests that this replica has accepted."""

    def __init__(self, context: ServingContext, replies: Replies, slots: Slots, now_s: Callable[[], float]) -> None:
        """`slots`: capacity for accepted requests. `now_s`: the clock of deadlines, `Clock.now_s`."""
        self._context = context
        self._replies = replies
        self.slots = slots
        self._now_s = now_s
        self.tally = GoalTally()
        self._running: dict[Address, asyncio.Task[None]] = {}
        self._entered: set[Address] = set()
        """Attempts of `_running` that have entered the engine."""
        self._first_due: set[Address] = set()
        """Those of them without a token."""

    @property
    def requests(self) -> int:
        return len(self._running)

    @property
    def preparing(self) -> int:
        """Number of requests not yet in the engine: they wait for their prompt, a place or an adapter."""
        return len(self._running) - len(self._entered)

    async def run(self, bus: Bus, pool: str, replica: str) -> None:
        """Serve until cancelled; running requests are then reported as lost. Raises: Fatal when the engine is dead."""
        try:
            async with asyncio.TaskGroup() as self._runners:
                self._runners.create_task(self._replies.run())
                self._runners.create_task(self.tally.run())
                hearing, looking = partial(self._follow_cancellations, bus, replica), partial(self._end_with_gateways, bus)
                self._runners.create_task(run_forever(hearing, LISTEN_AGAIN_S, "cancellations_unheard"))
                self._runners.create_task(run_forever(looking, GATEWAYS_S, "gateways_unknown"))
                await bus.consume(streams.rollout_serves(pool), self.handle, self.slots)
        finally:
            await asyncio.shield(self._replies.flush())

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        """Accept one request; its reply is streamed outside the bus."""
        if delivery.headers.get(KIND_HEADER) == TextsRequest.kind:
            await self._give_texts(delivery)
            return
        try:
            request = delivery.read(ServeRequest)
        except Reject as error:  # no gateway of this version sends it; its own gateway waits only until the deadline
            log.warning("serve_request_unreadable", subject=delivery.subject, reason=str(error))
            return
        address = Address(request.gateway, request.request, request.attempt)
        if any(other.attempt >= address.attempt for other in self._of(request.gateway, request.request)):
            return
        self._end(list(self._of(request.gateway, request.request)))
        self.slots.take()
        SERVING.inc()
        self._replies.open(address)
        self._running[address] = self._runners.create_task(self._answer(request, address))
        await self._replies.show_life(address)
        return
        yield  # makes this an async generator, as handlers are

    async def _give_texts(self, delivery: Delivery) -> None:
        """Send texts of tokens; unreadable or late requests are ignored: the gateway waits a second or two, and then shows token ids."""
        try:
            request = delivery.read(TextsRequest)
            if request.answer_by_s < self._now_s():
                return
            texts = await asyncio.to_thread(texts_of, self._context.chat, request)
        except (Reject, ValueError) as error:
            log.warning("texts_request_unanswered", subject=delivery.subject, reason=str(error))
            return
        await self._replies.send_texts(request.gateway, texts)

    async def _answer(self, request: ServeRequest, address: Address) -> None:
        left_s = request.first_token_by_s - self._now_s()
        deadline, watch = asyncio.timeout(max(0.0, left_s)), self._watch(request)

        def enters() -> None:
            self._entered.add(address)
            self._note_first(address, is_due=True)

        def send(delta: ServedDelta) -> None:
            deadline.reschedule(None)
            self._replies.add(address, delta)
            self._note_first(address, is_due=False)
            watch.sent(len(delta.ids) // 4, time.monotonic())

        try:
            with structlog.contextvars.bound_contextvars(request=address.request, attempt=address.attempt, tenant=request.tenant):
                try:
                    async with deadline:
                        if left_s <= 0:
                            raise TimeoutError
                        await answer(self._context, request, address, send, enters, watch)
                    self._judge(request, watch, has_ended=True)
                except TimeoutError:
                    self._judge(request, watch)
                    self._fail(address, "overdue", "no replica had a place for it in time")
                except Refused as error:
                    self._fail(address, error.failure, str(error))
                except (Unavailable, HandedBack) as error:
                    self._fail(address, "engine_lost", str(error))
                except asyncio.CancelledError:
                    if address in self._running:  # this replica is stopping; the request was not cancelled
                        self._fail(address, "engine_lost", "the replica ends")
                    else:
                        self._judge(request, watch)
                    raise
                except Fatal as error:
                    self._fail(address, "engine_lost", str(error))
                    raise
                except Exception:
                    log.exception("serving_failed")
                    self._fail(address, "internal", "an error of this system; its log has more")
        finally:
            self._close(address)

    def _watch(self, request: ServeRequest) -> Watch:
        goals = self._context.goals
        due = goals_of(request, goals, self._now_s(), time.monotonic()) if goals is not None else None
        return Watch(due, resumes=bool(request.sampled))

    def _judge(self, request: ServeRequest, watch: Watch, *, has_ended: bool = False) -> None:
        if (outcome := watch.outcome(time.monotonic(), has_ended=has_ended)) is not None:
            self.tally.count(request.pool, outcome)

    def _note_first(self, address: Address, *, is_due: bool) -> None:
        """Under latency goals, hold loads of adapters back while a first token is due."""
        if self._context.goals is None:
            return
        if is_due:
            self._first_due.add(address)
            self._context.adapters.calm.clear()
        elif address in self._first_due:
            self._first_due.discard(address)
            if not self._first_due:
                self._context.adapters.calm.set()

    def _fail(self, address: Address, failure: Failure, reason: str) -> None:
        log.info("request_not_served", request=address.request, failure=failure)
        self._replies.add(address, ServedDelta(request=address.request, attempt=address.attempt, number=0, failure=failure, reason=reason))

    def _close(self, address: Address) -> None:
        if self._running.pop(address, None) is not None:
            self._entered.discard(address)
            self._note_first(address, is_due=False)
            self._replies.close(address)
            self.slots.release()
            SERVING.dec()

    def _of(self, gateway: str, request: str) -> Iterator[Address]:
        return (address for address in self._running if (address.gateway, address.request) == (gateway, request))

    def _end(self, addresses: list[Address]) -> None:
        """Cancel these attempts without a report to their gateways."""
        for address in addresses:
            log.info("request_cancelled", request=address.request, attempt=address.attempt)
            running = self._running[address]
            self._close(address)
            running.cancel()

    # ---------------------------------------------------------------------------------------------------- what ends one

    async def _follow_cancellations(self, bus: Bus, replica: str) -> None:
        async with bus.requests.listening(streams.cancels(replica)) as listening:
            while True:
                if (delivery := await listening.next(LISTEN_S)) is not None:
                    self._cancel(delivery)

    def _cancel(self, delivery: Delivery) -> None:
        try:
            message = delivery.read(CancelServing)
        except Reject as error:
            log.warning("cancellation_unreadable", reason=str(error))
            return
        for wanted in message.requests:
            self._end([address for address in self._of(message.gateway, wanted.request) if address.attempt <= wanted.attempt])

    async def _end_with_gateways(self, bus: Bus) -> None:
        """Cancel the requests of gateways that have died."""
        if not self._running:
            return
        reports = await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        live = {report.replica for report in reports if report.service == "gateway"}
        self._end([address for address in self._running if address.gateway not in live])


def texts_of(chat: Chat, request: TextsRequest) -> TokenTexts:
    """Text of each token id. Raises: ValueError if an id is outside the vocabulary."""
    ids_T = np.frombuffer(request.ids, dtype="<i4")
    if len(ids_T) and not 0 <= ids_T.min() <= ids_T.max() < chat.vocabulary:
        raise ValueError(f"ids from {ids_T.min()} to {ids_T.max()}, but tokens are 0 to {chat.vocabulary - 1}")
    by_id = {token: chat.token_bytes(token) for token in set(ids_T.tolist())}
    return TokenTexts(
        request=request.request,
        texts=[by_id[token] for token in ids_T.tolist()],
        control=bytes(token in chat.control_ids for token in ids_T.tolist()),
        openings=chat.openings,
    )
