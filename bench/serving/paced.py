"""A source of tokens at a rate, in place of sampler and engine: `python -m bench.serving.paced NATS_URL TOKENS_PER_S`.

Each token's text is the moment at which it was due, on the monotonic clock, which all processes of a machine share. Tokens that are
due are sent every FLUSH_S, one message for each gateway, as the sampler sends them. Its first line says that it is ready, its last
one how many flushes and messages there were.
"""

import asyncio
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from bench.serving.stacks import POOL, SEQUENCES
from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import CancelServing, ReplicaReport, Served, ServedAttempt, ServedDelta, ServeRequest
from common.messages.serving import ALIVE_S
from common.runtime.service import report_replica
from rollout_svc.serving.replies import FLUSH_S

REPLICA = "paced"
PROMPT_TOKENS = 8
MAX_STREAMS = 1000


class Stream:
    def __init__(self, request: ServeRequest, tokens: int, due_s: float) -> None:
        self.gateway = request.gateway
        self.attempt = ServedAttempt(request=request.request, attempt=request.attempt)
        self.left = tokens
        self.due_s = due_s
        self.number = 0


class Paced:
    def __init__(self, bus: Bus, rate: float) -> None:
        self._bus = bus
        self._period_s = 1 / rate
        self._streams: dict[str, Stream] = {}
        self._phases = random.Random(7)
        self.flushes = 0
        self.messages = 0

    async def handle(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        request = delivery.read(ServeRequest)
        due_s = time.monotonic() + self._phases.random() * self._period_s
        stream = self._streams[request.request] = Stream(request, request.sampling.max_tokens or 1, due_s)
        await self._bus.requests.send(streams.replies(stream.gateway), Served(replica=REPLICA, alive=[stream.attempt]))
        return
        yield  # makes this an async generator, as handlers are

    async def flush_often(self) -> None:
        while True:
            began = time.monotonic()
            due: dict[str, list[ServedDelta]] = defaultdict(list)
            for stream in list(self._streams.values()):
                if stream.due_s <= began:
                    due[stream.gateway].append(self._delta(stream, began))
            self.flushes += bool(due)
            self.messages += len(due)
            for gateway, deltas in due.items():
                await self._bus.requests.send(streams.replies(gateway), Served(replica=REPLICA, deltas=deltas))
            await asyncio.sleep(max(0.0, began + FLUSH_S - time.monotonic()))

    def _delta(self, stream: Stream, now_s: float) -> ServedDelta:
        """All its tokens that are due, as a delta joins them."""
        text, ids = "", b""
        while stream.due_s <= now_s and stream.left:
            text += f"{stream.due_s:.6f} "
            ids += b"\5\0\0\0"
            stream.due_s += self._period_s
            stream.left -= 1
        first = stream.number == 0
        delta = ServedDelta(
            request=stream.attempt.request,
            attempt=stream.attempt.attempt,
            number=stream.number,
            ids=ids,
            text=text,
            finish=None if stream.left else "length",
            cached_tokens=None if stream.left else 0,
            prompt_tokens=PROMPT_TOKENS if first else None,
            fingerprint="paced" if first else "",
        )
        stream.number += 1
        if not stream.left:
            del self._streams[stream.attempt.request]
        return delta

    async def show_life(self) -> None:
        while True:
            by_gateway: dict[str, list[ServedAttempt]] = defaultdict(list)
            for stream in self._streams.values():
                by_gateway[stream.gateway].append(stream.attempt)
            for gateway, alive in by_gateway.items():
                await self._bus.requests.send(streams.replies(gateway), Served(replica=REPLICA, alive=alive))
            await asyncio.sleep(ALIVE_S)

    async def follow_cancellations(self) -> None:
        async with self._bus.requests.listening(streams.cancels(REPLICA)) as listening:
            while True:
                if (delivery := await listening.next(60)) is not None:
                    for one in delivery.read(CancelServing).requests:
                        self._streams.pop(one.request, None)


async def main(url: str, creds: Path, rate: float) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    report = ReplicaReport(replica=REPLICA, service="rollout", pool=POOL, sequences=SEQUENCES, kv_tokens=1, serves=True)
    async with await Bus.connect(url, "bench-paced", creds=creds) as bus:
        paced = Paced(bus, rate)
        loops = (paced.flush_often(), paced.show_life(), paced.follow_cancellations(), report_replica(bus, lambda: report))
        work = [asyncio.create_task(one) for one in loops]
        work.append(asyncio.create_task(bus.consume(streams.rollout_serves(POOL), paced.handle, Slots(MAX_STREAMS))))
        print("ready", flush=True)
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait([stopping, *work], return_when=asyncio.FIRST_COMPLETED)
        for one in work:
            one.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*work)
    print(paced.flushes, paced.messages, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])))
