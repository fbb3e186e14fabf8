"""What an engine is given: served requests at their times, whether earlier ones have ended or not, and training steps of several tasks."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from statistics import median

from bench.coserving.engine import LENIENT, ArmEngine
from bench.coserving.sums import PROMPT, ROLLOUT_PROMPT, ROLLOUT_TOKENS, TOKENS, TPOT, TTFT, Asked, Window
from common.errors import Fatal, Reject
from common.pools import Goals
from rollout_svc.engine.engine import SampleRequest
from rollout_svc.engine.stream import RequestGoals, StreamRequest, stream

WORDS = 500
STEP = 24
"""Rollouts of a task's step; all tasks together want 2.25 times the seats."""
SETTLE_S = 1.0
"""Seconds of rollouts before a window begins."""
DRAIN_S = 5.0
"""Seconds after a window until requests that still run are cut off."""
BURST, BURST_S, BURST_EVERY_S = 4.0, 2.0, 10.0
BATCHES, BATCH = 5, 8
COUNTED = ("steps", "rollout_steps", "withheld_steps", "preempted", "recomputed_tokens", "faults")
COUNTED_HERE = ("engine_steps", "added_s", "took_s", "cuts", "preempted_after_cut")
_numbers = itertools.count()


@dataclass(frozen=True)
class Load:
    """Requests a second, on average; with bursts, `BURST` times as many for `BURST_S` in each `BURST_EVERY_S`."""

    rate: float
    has_bursts: bool = False

    def arrivals(self, seconds: float, seed: int) -> list[float]:
        """Times of a Poisson process."""
        random, found, at_s = Random(seed), list[float](), 0.0
        most = self.rate * (BURST if self.has_bursts else 1.0)
        while (at_s := at_s + random.expovariate(most)) < seconds:
            if not self.has_bursts or BURST_S <= at_s % BURST_EVERY_S < 2 * BURST_S or random.random() < 1 / BURST:
                found.append(at_s)
        return found


@dataclass
class Rollouts:
    """Training steps of several tasks: each begins when the task's last one has ended."""

    arm: ArmEngine
    adapter_of: Callable[[int], Awaitable[str]]
    """Adapter of a task's next step."""
    ended_tokens: int = 0
    steps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Begin and end of steps that have ended."""

    def tokens(self) -> int:
        """Tokens sampled so far, of running rollouts too."""
        return self.ended_tokens + sum(count for name, count in self.arm.engine.process.progress().items() if name.startswith("rollout"))

    async def task(self, number: int) -> None:
        for step in itertools.count():
            began_s, adapter = time.monotonic(), await self.adapter_of(number)
            await asyncio.gather(*(self._sample(rollout(100_000 * number + STEP * step + one, adapter)) for one in range(STEP)))
            self.steps.append((began_s, time.monotonic()))

    async def _sample(self, request: SampleRequest) -> None:
        sampled = await self.arm.engine.sample(request)
        self.ended_tokens += len(sampled.ids)


def rollout(number: int, adapter: str | None, name: str = "rollout") -> SampleRequest:
    """A rollout that is the same for equal numbers and adapters."""
    random = Random(number)
    ids, tokens = [random.randrange(3, WORDS) for _ in range(ROLLOUT_PROMPT)], random.randint(*ROLLOUT_TOKENS)
    return SampleRequest(f"{name}-{next(_numbers)}", ids, tokens, 1.0, seed=number, stop_ids=[], adapter=adapter)


@asynccontextmanager
async def rollouts(
    arm: ArmEngine, tasks: int | None = None, adapter_of: Callable[[int], Awaitable[str]] | None = None
) -> AsyncGenerator[Rollouts]:
    """Inside the block tasks train, by default one for each adapter; after it the engine is idle."""

    async def unchanged(number: int) -> str:
        return arm.adapters[1 + number % arm.tasks]

    found = Rollouts(arm, adapter_of or unchanged)
    work = [asyncio.create_task(found.task(number)) for number in range(tasks or arm.tasks)]
    try:
        await asyncio.sleep(SETTLE_S)
        yield found
    finally:
        for one in work:
            one.cancel()
        results = await asyncio.gather(*work, return_exceptions=True)
        await arm.engine.work.idle.wait()
        await asyncio.sleep(0.2)  # for aborts to arrive
    for error in results:
        if not isinstance(error, asyncio.CancelledError) and isinstance(error, BaseException):
            raise error


async def serve(arm: ArmEngine, asked: Asked, due_s: float, goals: Goals, adapter: str) -> None:
    """Ask once and note what comes. `due_s`: when it is due to be sent, on the monotonic clock."""
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    number = next(_numbers)
    random = Random(number)
    request = StreamRequest(
        f"served-{number}",
        [random.randrange(3, WORDS) for _ in range(PROMPT)],
        TOKENS,
        seed=number,
        stop_ids=[],
        adapter=adapter,
        goals=RequestGoals(due_s + goals.ttft_s, goals.tpot_s) if arm.has_goals else None,
    )
    with suppress(Fatal, Reject):
        async with aclosing(stream(arm.engine, request)) as parts:
            async for part in parts:
                asked.came(len(part.ids), time.monotonic() - due_s)
                asked.is_complete = part.finish == "length"


async def requests(arm: ArmEngine, load: Load, seconds: float, seed: int, goals: Goals) -> list[Asked]:
    """An open loop of `seconds`, and `DRAIN_S` at most until the last answer."""
    began_s, times = time.monotonic(), load.arrivals(seconds, seed)
    asked = [Asked() for _ in times]
    work = [asyncio.create_task(serve(arm, one, began_s + at_s, goals, arm.adapters[0])) for one, at_s in zip(asked, times, strict=True)]
    await asyncio.sleep(seconds)
    if work:
        _, cut = await asyncio.wait(work, timeout=DRAIN_S)
        for one in cut:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return asked


async def window(arm: ArmEngine, load: Load | None, seconds: float, seed: int, goals: Goals, beside: Rollouts | None) -> Window:
    """Measure for `seconds`: requests of `load`, and rollouts of `beside`, which run already."""
    before, tokens, began_s = arm.figures(), beside.tokens() if beside is not None else 0, time.monotonic()
    asking = asyncio.create_task(requests(arm, load or Load(1e-9), seconds, seed, goals))
    await asyncio.sleep(seconds)
    took_s, sampled = time.monotonic() - began_s, (beside.tokens() if beside is not None else 0) - tokens
    after = arm.figures()
    asked = await asking
    steps = [end - begin for begin, end in (beside.steps if beside is not None else []) if began_s <= end]
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in (*COUNTED, *COUNTED_HERE)}
    return Window(asked, goals, took_s, sampled, steps, after | grown)


async def measured(arm: ArmEngine, load: Load | None, seconds: float, seed: int, goals: Goals, *, trains: bool) -> Window:
    """A window of an idle engine: with training steps or without."""
    if not trains:
        return await window(arm, load, seconds, seed, goals, None)
    async with rollouts(arm) as beside:
        return await window(arm, load, seconds, seed, goals, beside)


async def pace(arm: ArmEngine, batches: int = BATCHES) -> tuple[Goals, Load]:
    """Goals, as multiples of the medians of requests one after another, in the fastest of some batches; and as many requests a second."""
    medians: list[tuple[float, float]] = []
    for _ in range(batches):
        asked = [Asked() for _ in range(BATCH)]
        for one in asked:
            await serve(arm, one, time.monotonic(), LENIENT, arm.adapters[0])
        medians.append((median(one.first_s or 0.0 for one in asked), median(one.tpot_s for one in asked)))
    first_s, next_s = min(first for first, _ in medians), min(following for _, following in medians)
    return Goals(TTFT * first_s, TPOT * next_s), Load(1 / (first_s + (TOKENS - 1) * next_s))
