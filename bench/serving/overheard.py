"""Tokens of each request as NATS carried them, which clients of the HTTP door are not shown."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from nats.aio.msg import Msg

from bench.harness.measures.tap import plain_client
from common.messages import Served, ServedDelta

PATIENCE_S = 20.0


class Overheard:
    def __init__(self) -> None:
        self._deltas: dict[str, dict[tuple[int, int], ServedDelta]] = defaultdict(dict)

    def note(self, body: bytes) -> None:
        for delta in Served.decode(body).deltas:
            self._deltas[delta.request].setdefault((delta.attempt, delta.number), delta)

    async def ended(self, request: str) -> None:
        """Wait for its last delta, which its client may have before."""
        async with asyncio.timeout(PATIENCE_S):
            while not any(delta.finish or delta.failure for delta in self._deltas[request].values()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def ids(self, request: str) -> list[int]:
        """Of a request that had one attempt."""
        found = self._deltas[request]
        return [token for key in sorted(found) for token in np.frombuffer(found[key].ids, dtype="<i4").tolist()]

    def sampled(self, request: str) -> int:
        """Tokens that any attempt has sent."""
        return sum(len(delta.ids) // 4 for delta in self._deltas[request].values())

    def largest(self, request: str) -> int:
        """Tokens of its largest delta."""
        return max((len(delta.ids) // 4 for delta in self._deltas[request].values()), default=0)

    def attempts(self, request: str) -> int:
        return len({attempt for attempt, _ in self._deltas[request]})


@asynccontextmanager
async def overhearing(url: str, creds: Path) -> AsyncGenerator[Overheard]:
    """All that replicas send to gateways while the block lasts."""
    found = Overheard()

    async def note(message: Msg) -> None:
        found.note(message.data)

    client = await plain_client(url, "bench-overhearing", creds)
    try:
        await client.subscribe("replies.>", cb=note)
        await client.flush()
        yield found
    finally:
        await client.drain()
