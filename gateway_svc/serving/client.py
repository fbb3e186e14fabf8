"""Client of serving: turns a request into a stream of deltas, whichever replicas sample it.

The request waits for its turn and is stored in a work queue, from which one replica takes it; its tokens arrive by core NATS. If tokens
are missing, or the replica falls silent, the next attempt includes the tokens so far, and another replica continues after them.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import structlog

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.errors import MarlaasError, Reject, StreamFull, Unavailable
from common.goals import GoalTally
from common.messages import CancelServing, Failure, PoolOffer, Served, ServedAttempt, ServedDelta, ServeRequest, ServingEnded
from common.periodic import run_forever
from gateway_svc.serving.places import PoolPlaces, WouldWait
from gateway_svc.serving.pools import Restarts
from gateway_svc.serving.progress import Buffer, Given, Progress
from gateway_svc.serving.reports import Reports, report_of
from gateway_svc.serving.stream_quota import MAX_STREAMS, MAX_WAITING_BYTES, Reservation, SendWindow, StreamQuota, TooManyStreams
from gateway_svc.serving.texts import Texts

MAX_ATTEMPTS = 8
RESUME_S = 5.0
"""Seconds within which another replica must continue a stream that has begun."""
MAX_UNHEARD = 2
"""Maximum consecutive attempts without any message from a replica, before a stream that has begun ends."""
GRACE_S = 0.5
"""Extra seconds for a replica's own report that a request is overdue."""
LOOK_S = 0.25
"""Seconds between checks for lost and overdue streams."""
RECONNECT_S = 0.5

log = structlog.get_logger()


@dataclass
class _Stream:
    request: ServeRequest
    """Message of the current attempt."""
    room: Reservation
    progress: Progress = field(default_factory=Progress)
    buffer: Buffer = field(default_factory=Buffer)
    given: Given = field(default_factory=Given)
    unheard: int = 0
    """Number of latest attempts without any message from a replica."""
    has_ended: bool = False
    """Whether the last delta of its reply has arrived."""

    def is_lost(self, monotonic_s: float) -> bool:
        """Whether another attempt is needed."""
        return self.progress.is_lost or self.progress.is_silent(monotonic_s)

    def is_overdue(self, now_s: float) -> bool:
        """Whether its first token is overdue."""
        return now_s > self.request.first_token_by_s + GRACE_S and (self.progress.replica is None or not self.progress.ids)


class Serving:
    """Requests of one gateway replica. `run` must be running."""

    def __init__(
        self,
        bus: Bus,
        gateway: str,
        *,
        max_streams: int = MAX_STREAMS,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """`gateway`: this replica's name. Its reports in the bucket `replicas` must have the same name, or samplers end its requests."""
        self._bus = bus
        self.gateway = gateway
        self._room = StreamQuota(max_streams, max_waiting_bytes)
        self._streams: dict[str, _Stream] = {}
        self._listens = asyncio.Event()
        self._turns = SendWindow()
        self.reports = Reports(bus)
        self.texts = Texts(bus, gateway)
        self.restarts = Restarts(bus)
        self.tally = GoalTally()
        self._places: dict[str, PoolPlaces] = {}
        """Pool with latency goals → its requests in flight."""

    @property
    def requests(self) -> int:
        return len(self._streams)

    @asynccontextmanager
    async def entered(self, request: ServeRequest, offer: PoolOffer | None) -> AsyncGenerator[Callable[[], None]]:
        """Count the request inside the block as one of its pool, if `offer` has latency goals. Call the yielded function at a first token.

        Raises: WouldWait, before the block, if its first token is expected after the goal.
        """
        if offer is None or offer.ttft_ms is None:
            yield lambda: None
            return
        now_s = self._bus.clock.now_s()
        left_s = (request.asked_s or now_s) + offer.ttft_ms / 1000 - now_s
        try:
            with self._places.setdefault(request.pool, PoolPlaces()).entered(request, self.restarts.places(offer), left_s) as begin:
                yield begin
        except WouldWait:
            self.tally.count(request.pool, "refused")
            raise

    async def run(self) -> None:
        """Receive deltas and send reports until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self.reports.run())
            runners.create_task(self.restarts.run())
            runners.create_task(self.tally.run())
            runners.create_task(run_forever(self._listen, RECONNECT_S, "replies_unheard"))
            runners.create_task(self._look_often())

    async def _look_often(self) -> None:
        """Wake streams that are lost or overdue."""
        while True:
            await asyncio.sleep(LOOK_S)
            now_s, monotonic_s = self._bus.clock.now_s(), time.monotonic()
            for stream in self._streams.values():
                if stream.is_lost(monotonic_s) or stream.is_overdue(now_s):
                    stream.buffer.wake()

    async def _listen(self) -> None:
        try:
            await self._bus.requests.hear(streams.replies(self.gateway), self._take, self._listens.set)
        finally:
            self._listens.clear()

    async def deltas(self, request: ServeRequest, report: Callable[[ServingEnded], None] | None = None) -> AsyncGenerator[ServedDelta]:
        """Yield the deltas of a request with attempt 0 and this gateway's name; the last has `finish` or `failure`.

        Nothing is sent before the first delta is requested. Closing the generator ends the request on its replica. Only the first delta has
        `prompt_tokens` and `fingerprint`. `report`: called at the end with the tokens delivered to the client; default: they are booked.
        Raises: TooManyStreams; Unavailable if NATS does not store the request; Reject if it is too large.
        """
        if request.request in self._streams:
            raise Reject(f"request {request.request} is running already")
        body = request.encode()
        stream = self._streams[request.request] = _Stream(request, self._room.enter(request.tenant, len(body)))
        end_turn: Callable[[], None] | None = None
        try:
            await self._listens.wait()
            end_turn = await self._turn(request)
            if end_turn is not None:
                await self._begin(request, body)
            del body
            while True:
                delta = stream.buffer.take() or (await self._wait_or_resume(stream) if end_turn else _overdue(stream))
                if delta is not None:
                    if end_turn is not None:
                        end_turn()
                    stream.given.add(delta)
                    yield delta
                    if delta.finish or delta.failure:
                        return
        finally:
            if end_turn is not None:
                end_turn()
            del self._streams[request.request]
            stream.room.leave()
            if (ended := report_of(stream.request, stream.given)) is not None:
                (report or self.reports.send)(ended)
            if not stream.has_ended:
                await asyncio.shield(self._cancel(stream.progress.replica, request.request, stream.progress.attempt))

    async def _turn(self, request: ServeRequest) -> Callable[[], None] | None:
        """Wait until the request may be sent; return a function that ends its turn, or None if the deadline passed."""
        try:
            async with asyncio.timeout(request.first_token_by_s - self._bus.clock.now_s()):
                return await self._turns.begin(request.pool, request.tenant, request.key)
        except TimeoutError:
            return None

    async def _begin(self, request: ServeRequest, body: bytes) -> None:
        """Send the first attempt. Raises: as `deltas`."""
        try:
            await self._publish(request, body)
        except StreamFull:
            raise TooManyStreams("requests of as many bytes as may wait for replicas, of all gateways; ask again later") from None

    async def _wait_or_resume(self, stream: _Stream) -> ServedDelta | None:
        """Wait for a delta or start the next attempt, and return None; return a last delta with `failure` if neither is possible."""
        if stream.buffer.is_over:
            return _failed(stream, "slow_reader", "the client has read too slowly")
        if stream.is_lost(time.monotonic()):
            return await self._try_again(stream)
        if stream.is_overdue(self._bus.clock.now_s()):
            return await self._not_taken(stream)
        await stream.buffer.wait()
        return None

    async def _not_taken(self, stream: _Stream) -> ServedDelta | None:
        if not stream.progress.ids:
            return _overdue(stream)
        stream.unheard += 1
        if stream.unheard >= MAX_UNHEARD:
            return _failed(stream, "engine_lost", "no replica continues it")
        return await self._try_again(stream)

    async def _try_again(self, stream: _Stream) -> ServedDelta | None:
        """Start the next attempt; return a last delta if the maximum was reached."""
        progress, now_s = stream.progress, self._bus.clock.now_s()
        log.warning("request_resumed", request=stream.request.request, attempt=progress.attempt, tokens=len(progress.ids) // 4)
        await self._cancel(progress.replica, stream.request.request, progress.attempt)
        if progress.attempt + 1 >= MAX_ATTEMPTS:
            return _failed(stream, "engine_lost", f"{MAX_ATTEMPTS} attempts were lost")
        progress.begin_next()
        stream.room.note(waits=True)
        resume_s = max(RESUME_S, self.restarts.expected_s(stream.request.pool) or 0.0)  # a restarting pool has no other replica
        first_token_by_s = now_s + resume_s if progress.ids else stream.request.first_token_by_s
        update = {"attempt": progress.attempt, "sampled": progress.ids, "first_token_by_s": first_token_by_s}
        stream.request = stream.request.model_copy(update=update)
        try:
            await self._publish(stream.request)
        except MarlaasError as error:
            return _failed(stream, "engine_lost", str(error))
        return None

    async def _publish(self, request: ServeRequest, body: bytes | None = None) -> None:
        task = request.adapter.task if request.adapter else None
        message_id = f"serve:{self.gateway}:{request.request}:{request.attempt}"
        await self._bus.publish(Outgoing(streams.serve(request.pool, task, request.request), request, message_id), body)

    async def _take(self, delivery: Delivery) -> None:
        try:
            message = delivery.read(Served)
        except Reject as error:
            log.warning("reply_unreadable", reason=str(error))
            return
        self.texts.take(message)
        unwanted: dict[str, int] = {}
        for alive in message.alive:
            stream = self._streams.get(alive.request)
            if stream is None or not stream.progress.hear(message.replica, alive.attempt, time.monotonic()):
                unwanted[alive.request] = alive.attempt
            else:
                stream.room.note(waits=False)
        for delta in message.deltas:
            if not self._give(message.replica, delta):
                unwanted[delta.request] = delta.attempt
        for request, attempt in unwanted.items():  # the client left before the replica was known; earlier attempts
            await self._cancel(message.replica, request, attempt)

    def _give(self, replica: str, delta: ServedDelta) -> bool:
        """Pass a delta to its stream; False if the replica should end the attempt because the client reads too slowly."""
        stream = self._streams.get(delta.request)
        if stream is None:
            return True  # cancelled at the replica's next sign of life
        wanted = stream.progress.take(replica, delta, time.monotonic())
        stream.room.note(waits=stream.progress.replica is None)
        if wanted is not None:
            stream.unheard = 0
            stream.has_ended = bool(wanted.finish or wanted.failure)
            if not stream.buffer.is_over:
                stream.buffer.put(wanted)
        else:
            stream.buffer.wake()
        return stream.has_ended or not stream.buffer.is_over

    async def _cancel(self, replica: str | None, request: str, attempt: int) -> None:
        """End an attempt on its replica. If the message is lost, it is sent again at the replica's next sign of life."""
        if replica is None:
            return
        message = CancelServing(gateway=self.gateway, requests=[ServedAttempt(request=request, attempt=attempt)])
        try:
            await self._bus.requests.send(streams.cancels(replica), message)
        except Unavailable as error:
            log.warning("cancellation_lost", request=request, reason=str(error))


def _overdue(stream: _Stream) -> ServedDelta:
    return _failed(stream, "overdue", f"no replica of pool '{stream.request.pool}' had a place for it in time")


def _failed(stream: _Stream, failure: Failure, reason: str) -> ServedDelta:
    progress = stream.progress
    return ServedDelta(request=stream.request.request, attempt=progress.attempt, number=0, failure=failure, reason=reason)
