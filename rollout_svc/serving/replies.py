"""Sends deltas to gateways: at most one message per gateway every FLUSH_S, however many requests it has."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import structlog

from common import streams
from common.errors import MarlaasError
from common.messages import Message, Served, ServedAttempt, ServedDelta, TokenTexts
from common.messages.serving import ALIVE_S
from common.periodic import run_forever
from rollout_svc.serving.reply import Piece

FLUSH_S = 0.005
"""Seconds between two messages: one message per token costs NATS and gateways a hundred times as much."""
GATHER_S = 0.001
"""Seconds that a first delta waits for others of the same engine step."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Address:
    """One attempt at a request of one gateway."""

    gateway: str
    request: str
    attempt: int


class Replies:
    """Numbers and sends the deltas of attempts, and reports that attempts are alive."""

    def __init__(self, replica: str, publish: Callable[[str, Message], Awaitable[None]]) -> None:
        """`publish`: sends a message by core NATS, `Requests.send`."""
        self._replica = replica
        self._publish = publish
        self._pending: dict[Address, ServedDelta] = {}
        self._numbers: dict[Address, int] = {}
        """Number of the next delta of each open attempt."""
        self._woken = asyncio.Event()

    def open(self, address: Address) -> None:
        self._numbers[address] = 0

    def close(self, address: Address) -> None:
        """Stop numbering an attempt's deltas; its last delta may still be pending."""
        self._numbers.pop(address, None)

    def add(self, address: Address, delta: ServedDelta) -> None:
        """Queue a delta, with its number assigned here; it is merged into the attempt's pending delta, if there is one."""
        waiting = self._pending.get(address)
        if waiting is None:
            self._pending[address] = delta.model_copy(update={"number": self._numbers[address]})
            self._numbers[address] += 1
        else:
            self._pending[address] = _joined(waiting, delta)
        self._woken.set()

    async def run(self) -> None:
        """Send queued deltas until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._flush_often())
            runners.create_task(run_forever(self.show_life, ALIVE_S, "reply_lost"))

    async def flush(self) -> None:
        """Send all pending deltas."""
        pending, self._pending = self._pending, {}
        by_gateway: dict[str, list[ServedDelta]] = defaultdict(list)
        for address, delta in pending.items():
            by_gateway[address.gateway].append(delta)
        for gateway, deltas in by_gateway.items():
            await self._send(gateway, Served(replica=self._replica, deltas=deltas))

    async def send_texts(self, gateway: str, texts: TokenTexts) -> None:
        await self._send(gateway, Served(replica=self._replica, texts=[texts]))

    async def show_life(self, only: Address | None = None) -> None:
        """Report open attempts as alive to their gateways: all of them, or `only` one."""
        by_gateway: dict[str, list[ServedAttempt]] = defaultdict(list)
        for address in [only] if only else self._numbers:
            by_gateway[address.gateway].append(ServedAttempt(request=address.request, attempt=address.attempt))
        for gateway, alive in by_gateway.items():
            await self._send(gateway, Served(replica=self._replica, alive=alive))

    async def _send(self, gateway: str, message: Served) -> None:
        try:
            await self._publish(streams.replies(gateway), message)
        except MarlaasError as error:  # the gateway finds a gap in the numbers, and asks another replica
            log.warning("reply_lost", gateway=gateway, reason=str(error))

    async def _flush_often(self) -> None:
        sent_s = -FLUSH_S
        while True:
            await self._woken.wait()
            await asyncio.sleep(max(GATHER_S, sent_s + FLUSH_S - time.monotonic()))
            self._woken.clear()
            sent_s = time.monotonic()
            await self.flush()


def delta_of(address: Address, piece: Piece) -> ServedDelta:
    """`piece` as a delta; its number is assigned when it is queued."""
    return ServedDelta(
        request=address.request,
        attempt=address.attempt,
        number=0,
        ids=np.asarray(piece.ids, dtype="<i4").tobytes(),
        text=piece.text,
        reasoning=piece.reasoning,
        tokens=piece.tokens,
        calls=piece.calls,
        finish=piece.finish,
    )


def _joined(first: ServedDelta, second: ServedDelta) -> ServedDelta:
    return second.model_copy(
        update={
            "number": first.number,
            "ids": first.ids + second.ids,
            "text": first.text + second.text,
            "reasoning": first.reasoning + second.reasoning,
            "tokens": [*first.tokens, *second.tokens],
            "calls": [*first.calls, *second.calls],
            "prompt_tokens": first.prompt_tokens,
            "fingerprint": first.fingerprint,
            "cached_tokens": second.cached_tokens if second.cached_tokens is not None else first.cached_tokens,
        }
    )
