"""What the scheduler booked of an accelerator in one run, and how long executors waited for it by their own reports."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import report
from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import ExecutorReport, SliceOf


@dataclass
class Reports:
    """Reports of all executors, in the order in which they came."""

    by_executor: dict[str, list[ExecutorReport]] = field(default_factory=dict[str, list[ExecutorReport]])

    def ready_since_s(self, executor: str, at_s: float) -> float | None:
        """Since when the executor had work at a time, by its newest report until then; None where it had none."""
        until = [one for one in self.by_executor.get(executor, []) if one.at_s <= at_s]
        return until[-1].ready_since_s if until else None


@asynccontextmanager
async def reported(nats_url: str, creds: Path) -> AsyncGenerator[Reports]:
    """Reports that are heard until the end of the block."""
    found = Reports()

    async def listen() -> None:
        while True:
            delivery = await listening.next(1.0)
            if delivery is not None:
                with suppress(Reject):
                    one = delivery.read(ExecutorReport)
                    found.by_executor.setdefault(one.executor, []).append(one)

    async with (
        await Bus.connect(nats_url, "bench", creds=creds) as bus,
        bus.requests.listening(streams.executor_now("*", "*")) as listening,
    ):
        task = asyncio.create_task(listen())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def waits_s(slices: Sequence[SliceOf], reports: Reports) -> list[float]:
    """Of each slice that woke: from when its executor was ready, and its latest slice over, until it was awake."""
    ended_s: dict[str, float] = {}
    found: list[float] = []
    for one in sorted(slices, key=lambda one: one.epoch):
        ready_s = reports.ready_since_s(one.executor, one.ordered_s)
        if one.awake_s is not None and ready_s is not None:
            found.append(one.awake_s - max(ready_s, ended_s.get(one.executor, 0.0)))
        if one.ended_s is not None:
            ended_s[one.executor] = one.ended_s
    return found


def described(slices: Sequence[SliceOf], reports: Reports, began_s: float, ended_s: float) -> dict[str, Any]:
    """Figures of the slices ordered from `began_s` to `ended_s`, Unix seconds. `unaccounted_share`: of the time from the first order to
    the last end, what is neither in a slice's parts nor without any slice."""
    ordered = sorted((one for one in slices if began_s <= one.ordered_s <= ended_s), key=lambda one: one.epoch)
    booked = [one for one in ordered if one.ended_s is not None and one.switch_ms is not None]
    parts = {
        name: sum(getattr(one, f"{name}_ms") for one in booked) / 1000  # ms: of the parts
        for name in ("switch", "busy", "idle")
    }
    none_s = wall_s = 0.0
    if booked:
        ends = [float(one.ended_s or 0) for one in booked]
        wall_s = ends[-1] - booked[0].ordered_s
        none_s = sum(max(0.0, after.ordered_s - end) for end, after in zip(ends, booked[1:], strict=False))
    return {
        "switches": len(ordered),
        "reasons": dict(Counter(one.reason for one in ordered)),
        **{f"{name}_s": round(seconds, 3) for name, seconds in parts.items()},
        "without_slice_s": round(none_s, 3),
        "wall_s": round(wall_s, 3),
        "unaccounted_share": round(abs(wall_s - none_s - sum(parts.values())) / wall_s, 6) if wall_s else 0.0,
        "booked": len(booked),
        "wrongly_booked": sum(sum(share.ms for share in one.shares) != _held_ms(one) for one in booked),
        "wait_s": report.spread(waits_s(ordered, reports)),
    }


def _held_ms(one: SliceOf) -> int:
    return (one.switch_ms or 0) + (one.busy_ms or 0) + (one.idle_ms or 0)
