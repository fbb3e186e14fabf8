"""What an engine is given: served requests at their times, whether earlier ones have ended or not, and training steps of several tasks."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from statistics import median

from bench.coserving.engine import LENIENT, Arm
from bench.coserving.sums import PROMPT, ROLLOUT_PROMPT, ROLLOUT_TOKENS, TOKENS, TPOT, TTFT, Asked, Window
from common.errors import Fatal, Reject
from common.pools import Goals
from rollout_svc.engine.engine import SampleRequest
from rollout_svc.engine.stream import RequestGoals, StreamRequest, stream

WORDS = 500
STEP = 24
"""Rollouts of a task's step; six tasks want 2.25 times the seats."""
SETTLE_S = 1.0
"""Seconds of rollouts before a window begins."""
DRAIN_S = 5.0
"""Seconds after a window until requests that still run are cut off."""
BURST, BURST_S, BURST_EVERY_S = 4.0, 2.0, 10.0
BATCH, PAUSE_S = 8, 1.0
_numbers = itertools.count()
_NextAdapter = Callable[[int], Awaitable[str]]


@dataclass(frozen=True)
class Load:
    """Requests a second; with bursts, `BURST` times as many for `BURST_S` in each `BURST_EVERY_S`."""

    rate: float
    has_bursts: bool = False

    def arrivals(self, seconds: float, seed: int) -> list[float]:
        """Times of a Poisson process."""
        random, found, at_s = Random(seed), list[float](), 0.0
        most = self.rate * (BURST if self.has_bursts else 1.0)
        while most and (at_s := at_s + random.expovariate(most)) < seconds:
            if not self.has_bursts or BURST_S <= at_s % BURST_EVERY_S < 2 * BURST_S or random.random() < 1 / BURST:
                found.append(at_s)
        return found


NONE = Load(0.0)


class Rollouts:
    """Training steps of an arm's tasks: each begins when the task's last one has ended."""

    def __init__(self, arm: Arm, adapter_of: _NextAdapter) -> None:
        self._arm, self._adapter_of, self._ended_tokens = arm, adapter_of, 0
        self.steps: list[tuple[float, float]] = []
        """Begin and end of those that have ended."""

    def tokens(self) -> int:
        """Tokens sampled so far, of running rollouts too."""
        progress = self._arm.engine.process.progress().items()
        return self._ended_tokens + sum(count for name, count in progress if name.startswith("rollout"))

    async def train(self, task: int) -> None:
        for step in itertools.count():
            began_s, adapter = time.monotonic(), await self._adapter_of(task)
            await asyncio.gather(*(self._sample(rollout(100_000 * task + STEP * step + one, adapter)) for one in range(STEP)))
            self.steps.append((began_s, time.monotonic()))

    async def _sample(self, request: SampleRequest) -> None:
        sampled = await self._arm.engine.sample(request)
        self._ended_tokens += len(sampled.ids)  # not in one line: the sum would be read before the wait, and others' tokens lost


def rollout(number: int, adapter: str | None, name: str = "rollout") -> SampleRequest:
    """A rollout that is the same for equal numbers and adapters."""
    random = Random(number)
    ids, tokens = [random.randrange(3, WORDS) for _ in range(ROLLOUT_PROMPT)], random.randint(*ROLLOUT_TOKENS)
    return SampleRequest(f"{name}-{next(_numbers)}", ids, tokens, 1.0, seed=number, stop_ids=[], adapter=adapter)


@asynccontextmanager
async def rollouts(arm: Arm, tasks: int = 0, adapter_of: _NextAdapter | None = None) -> AsyncGenerator[Rollouts]:
    """Inside the block tasks train, as many as the arm has by default; after it the engine is idle."""

    async def unchanged(task: int) -> str:
        return f"task-{task % arm.tasks}"

    found = Rollouts(arm, adapter_of or unchanged)
    work = [asyncio.create_task(found.train(task)) for task in range(tasks or arm.tasks)]
    try:
        await asyncio.sleep(SETTLE_S)
        yield found
    finally:
        failed = [one.exception() for one in work if one.done()]
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await arm.engine.work.idle.wait()
        await asyncio.sleep(0.2)  # for aborts to arrive
    assert not failed, failed


async def serve(arm: Arm, asked: Asked, due_s: float, goals: Goals) -> None:
    """Ask once and note what comes. `due_s`: when it is due to be sent, on the monotonic clock."""
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    random, number = Random(), next(_numbers)
    ids = [random.randrange(3, WORDS) for _ in range(PROMPT)]
    aims = RequestGoals(due_s + goals.ttft_s, goals.tpot_s) if arm.has_goals else None
    request = StreamRequest(f"served-{number}", ids, TOKENS, seed=number, stop_ids=[], adapter="served", goals=aims)
    with suppress(Fatal, Reject):
        async with aclosing(stream(arm.engine, request)) as parts:
            async for part in parts:
                asked.came(len(part.ids), time.monotonic() - due_s)
                asked.is_complete = part.finish == "length"


async def requests(arm: Arm, load: Load, seconds: float, seed: int, goals: Goals) -> list[Asked]:
    """An open loop of `seconds`, and `DRAIN_S` at most until the last answer."""
    began_s, asked = time.monotonic(), [(at_s, Asked()) for at_s in load.arrivals(seconds, seed)]
    work = [asyncio.create_task(serve(arm, one, began_s + at_s, goals)) for at_s, one in asked]
    _, cut = await asyncio.wait([asyncio.create_task(asyncio.sleep(seconds)), *work], timeout=seconds + DRAIN_S)
    for one in cut:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    return [one for _, one in asked]


async def window(arm: Arm, load: Load, seconds: float, seed: int, goals: Goals, beside: Rollouts | None = None) -> Window:
    """Measure for `seconds`: requests of `load`, and rollouts of `beside`, which run already."""
    before, tokens, began_s = arm.figures(), beside.tokens() if beside is not None else 0, time.monotonic()
    asking = asyncio.create_task(requests(arm, load, seconds, seed, goals))
    await asyncio.sleep(seconds)
    took_s, sampled = time.monotonic() - began_s, beside.tokens() - tokens if beside is not None else 0
    after = arm.figures()
    asked = await asking
    steps = [end - begin for begin, end in (beside.steps if beside is not None else ()) if began_s <= end]
    return Window(asked, goals, took_s, sampled, steps, {name: value - before.get(name, 0.0) for name, value in after.items()}, after)


async def pace(arm: Arm, batches: int) -> tuple[Goals, Load]:
    """Goals, as multiples of the medians of requests one after another; and as many requests a second.

    The machine's speed varies from second to second: of batches with pauses between them the median one counts. In the fastest one goals
    were so tight that requests alone missed them, minutes later.
    """
    medians: list[tuple[float, float]] = []
    for _ in range(2 * batches):
        await asyncio.sleep(PAUSE_S)
        asked = [Asked() for _ in range(BATCH)]
        for one in asked:
            await serve(arm, one, time.monotonic(), LENIENT)
        medians.append((median(one.first_s or 0.0 for one in asked), median(one.tpot_s for one in asked)))
    first_s, next_s = median(first for first, _ in medians), median(following for _, following in medians)
    return Goals(TTFT * first_s, TPOT * next_s), Load(1 / (first_s + (TOKENS - 1) * next_s))
