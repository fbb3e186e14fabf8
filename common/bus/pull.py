"""Pull requests of one consumer, and the leases of the messages delivered to them."""

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from common.bus.transport.connection import Connection
from common.bus.transport.refusals import Refused
from common.errors import Undeclared
from common.heartbeats import beat
from common.streams import Consumer

HEARTBEATS_PER_LEASE = 5
"""Heartbeats per lease (`Consumer.ack_wait_s`): three may be late or lost."""
MAX_ACKNOWLEDGEMENT_DELAY_S = 0.02
"""Maximum seconds that an acknowledgement waits to share a packet with others: a packet costs both sides as much as a message."""

log = structlog.get_logger()

_Identity = tuple[int, datetime]
"""Sequence of a message in its stream, and time of storage."""


class Pull:
    """Requests messages up to the free capacity, and keeps those in flight alive until they are acknowledged.

    nats-py's own `fetch` can leave a pull request open; messages would then arrive whose lease is not extended.
    """

    def __init__(self, connection: Connection, consumer: Consumer, redeclare: Callable[[], Awaitable[None]]) -> None:
        self.consumer = consumer
        self._timings = connection.timings
        self._client = connection.client
        self._beats = connection.beats
        self._beat_s = consumer.ack_wait_s / HEARTBEATS_PER_LEASE
        self._redeclare = redeclare
        self._inbox = self._client.new_inbox()
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.name}"
        self._arrived: deque[Msg] = deque()
        self._woken = asyncio.Event()
        self._requested = 0
        self._requested_at = 0.0
        self._unwanted = asyncio.Event()
        self._missing = False
        self._ending = False
        self._known: dict[_Identity, Msg] = {}
        """Messages that have arrived and are neither returned nor acknowledged."""
        self._held: dict[_Identity, Msg] = {}
        self._done: list[Msg] = []
        """Messages to be acknowledged."""
        self._any_done = asyncio.Event()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def unacknowledged(self) -> int:
        """Number of messages that have arrived and are neither acknowledged nor returned."""
        return len(self._known)

    async def start(self) -> None:
        self._beats.start(self._beat_s)
        self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)

    def stop_requesting(self) -> None:
        self._ending = True

    async def stop(self) -> None:
        """Stop requesting, and hand back the messages that no handler has started."""
        self.stop_requesting()
        with suppress(NatsError, OSError, TimeoutError):
            if self._client.is_connected:
                async with asyncio.timeout(self._timings.drain_timeout_s):
                    await self._subscription.drain()  # messages in flight still arrive; each would otherwise wait for the end of its lease
            else:
                await self._subscription.unsubscribe()
        while self._arrived:
            await self.redeliver(self._arrived.popleft(), delay_s=0)
        await self.acknowledge()

    async def return_held(self) -> None:
        """Hand back all held messages, so that the server delivers them to the next replica that requests some."""
        for message in list(self._held.values()):
            await self.redeliver(message, delay_s=0)

    async def withdraw(self) -> None:
        """Cancel the pending requests by changing the inbox: the server drops requests whose replies have no subscriber. Messages already
        sent still arrive."""
        if not self._requested:
            return
        self._requested = 0
        listening, self._inbox = self._subscription, self._client.new_inbox()
        with suppress(NatsError, OSError, TimeoutError):
            self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
            async with asyncio.timeout(self._timings.drain_timeout_s):
                await listening.drain()

    def reset(self) -> None:
        """Forget the pending requests: the server has lost them."""
        self._requested = 0
        self._woken.set()

    def wake(self) -> None:
        """Recheck the free capacity, which may have grown."""
        self._woken.set()

    def withdraw_soon(self) -> None:
        """Make `tend` withdraw the pending requests, because there is no capacity left."""
        self._unwanted.set()

    async def receive(self, room: Callable[[], int]) -> list[Msg]:
        """Wait for messages; returns those that have arrived. `room`: returns the free capacity, up to which messages are requested."""
        while True:
            if self._missing:
                self._missing = False
                await self._redeclare()
            if self._arrived:
                return self.take()
            await self._request(room())
            try:
                with self._client.refusals.awaited(self._next):
                    async with asyncio.timeout(self._timings.pull_expires_s):
                        await self._woken.wait()
            except Refused as error:
                raise Undeclared(f"NATS forbids this: {error}") from None
            except TimeoutError:
                pass
            self._woken.clear()

    def take(self) -> list[Msg]:
        """Take all messages that have arrived; they count as held from now on."""
        found = list(self._arrived)
        self._arrived.clear()
        self._held.update((_identity(message), message) for message in found)
        return found

    async def _request(self, room: int) -> None:
        if time.monotonic() - self._requested_at > self._timings.pull_expires_s + self._timings.lost_pull_s:
            self._requested = 0
        missing = room - self._requested
        # Not for each message that arrived: only if less than half of the capacity is requested.
        if missing <= 0 or 2 * self._requested > room or self._ending or not self._client.is_connected:
            return
        self._requested += missing
        self._requested_at = time.monotonic()
        request = json.dumps({"batch": missing, "expires": int(self._timings.pull_expires_s * 1e9)}).encode()
        with suppress(NatsError, OSError):
            await self._client.publish(self._next, request, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        status = (message.headers or {}).get("Status")
        if status is None:
            self._requested = max(0, self._requested - 1)
            self._arrive(message)
        elif status != "100":
            pending = (message.headers or {}).get("Nats-Pending-Messages")
            self._requested = max(0, self._requested - int(pending)) if pending else 0
            if status == "503" or "Consumer Deleted" in (message.headers or {}).get("Description", ""):
                self._missing = True
        self._woken.set()

    def _arrive(self, message: Msg) -> None:
        """Queue the message, unless this process has it already: its lease may have ended while NATS was unavailable. In that case, the
        known message gets the reply subject of the new delivery."""
        known = self._known.setdefault(_identity(message), message)
        if known is message:
            self._arrived.append(message)
        else:
            self._beats.release(known.reply)
            known.reply = message.reply
            log.warning("message_redelivered_to_its_holder", subject=message.subject, consumer=self.consumer.name)
        self._beats.hold(message.reply, self._beat_s)

    async def tend(self) -> None:
        """Acknowledge finished messages, extend the leases of the others and withdraw unwanted requests, until cancelled."""
        async with asyncio.TaskGroup() as runners:
            for runner in (self._keep_alive, self._acknowledge_soon, self._withdraw_unwanted):
                runners.create_task(runner())

    async def _withdraw_unwanted(self) -> None:
        while True:
            await self._unwanted.wait()
            self._unwanted.clear()
            await self.withdraw()
            self.wake()  # there may be capacity again

    async def _acknowledge_soon(self) -> None:
        while True:
            await self._any_done.wait()
            await asyncio.sleep(MAX_ACKNOWLEDGEMENT_DELAY_S)
            await self.acknowledge()

    async def acknowledge(self) -> None:
        """Acknowledge all finished messages. If an acknowledgement is lost, the message is redelivered, which every handler tolerates."""
        done, self._done = self._done, []
        self._any_done.clear()
        for message in done:
            self._forget(message)
            with suppress(NatsError, OSError):
                await message.ack()

    async def _keep_alive(self) -> None:
        """Report that the event loop runs; send the heartbeats if their own connection fails."""
        while True:
            self._beats.turned()
            await asyncio.sleep(self._beat_s)
            if not self._beats.is_connected:
                await beat(self._client, self._beats.due())

    def done(self, message: Msg) -> None:
        """Acknowledge within MAX_ACKNOWLEDGEMENT_DELAY_S, or with the next published message."""
        self._held.pop(_identity(message), None)
        self._done.append(message)
        self._any_done.set()

    async def terminate(self, message: Msg) -> None:
        """Terminate the message: the server never redelivers it."""
        await self._settle(message, message.term)

    async def redeliver(self, message: Msg, *, delay_s: float) -> None:
        await self._settle(message, lambda: message.nak(delay=delay_s or None))

    async def _settle(self, message: Msg, answer: Callable[[], Awaitable[None]]) -> None:
        self._held.pop(_identity(message), None)
        self._forget(message)
        with suppress(NatsError, OSError):  # as in `acknowledge`
            await answer()

    def _forget(self, message: Msg) -> None:
        self._known.pop(_identity(message), None)
        self._beats.release(message.reply)


def _identity(message: Msg) -> _Identity:
    """Identity of a message: equal for all its deliveries and different from every other's, even if NATS was restored to an older
    backup."""
    return message.metadata.sequence.stream, message.metadata.timestamp
