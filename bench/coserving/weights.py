"""An adapter version's bytes and its way to the first token, and the gaps of streams meanwhile: rank 32, a model of Qwen3-0.6B's shape.

The way: fetched from NATS on this machine, loaded by the engine, a canary's log-probabilities, a first token. Streams run without rollouts.
"""

import asyncio
import itertools
import tempfile
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.coserving.engine import LENIENT, Arm, engines
from bench.coserving.load import rollout
from bench.coserving.sums import Options, Row, at_most
from bench.engine import write_adapter
from bench.harness import models, services
from common.blobs import Blobs
from common.bus import Bus
from rollout_svc.engine.stream import RequestGoals, StreamRequest, stream

RANK, STREAMS, VERSIONS, TOKENS = 32, 4, 5, 400
WAY = ("fetch", "load", "canary", "first")
MAX_GAP, TPOT = 4.0, 2.0
"""Gap above which a load would have to wait, as a multiple of the goal for further tokens; that goal as a multiple of their median."""


def run(options: Options) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name, services.nats(Path(name)) as url:
        model = models.write_model(models.SMALL if options.small else models.QWEN3_0_6B, torch.float32, Path(name) / "model")
        rows = asyncio.run(_rows(options, model, url))
    share, gap = (median(row[part] / row[whole] for row in rows) for part, whole in (("fetch_ms", "way_ms"), ("gap_load_ms", "step_ms")))
    checks = [
        at_most("share of fetching in the way to the first token", share, 0.05),
        at_most("longest gap while a version loads, over the goal", gap / TPOT, MAX_GAP),
    ]
    return {"rank": RANK, "streams": STREAMS, "rows": rows, "checks": checks}


async def _rows(options: Options, model: Path, url: str) -> list[Row]:
    changes = {"model": str(model), "max_rank": RANK, "sequences": STREAMS, "adapters": 2, "adapters_held": 8, "kv_cache_gib": 0.5}
    async with engines(("ours",), options.device, tasks=0, **changes) as arms, await Bus.connect(url, "bench") as bus:
        await bus.declare()
        return [await _row(arms["ours"], Blobs(bus), number) for number in range(1 if options.small else VERSIONS)]


async def _row(arm: Arm, blobs: Blobs, number: int) -> Row:
    """A version's way, while streams run."""
    engine, made, name = arm.engine, arm.folder / f"made-{number}", f"version-{number}"
    write_adapter(Path(engine.settings.model), made, 100 + number, RANK)
    ref, came, began = await blobs.put_folder(f"bench.v{number}.adapter", made), [list[float]() for _ in range(STREAMS)], asyncio.Event()
    streams = [asyncio.create_task(_stream(arm, f"{name}-{place}", times, began)) for place, times in enumerate(came)]
    await began.wait()
    at_s = [time.monotonic()]
    for step in (
        blobs.fetch_folder(ref, arm.folder / name),
        engine.load(name, arm.folder / name),
        engine.prompt_logprobs(rollout(number, None).ids, name),
        engine.sample(replace(rollout(number, name), max_tokens=1)),
    ):
        await step
        at_s.append(time.monotonic())
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await engine.unload(name)
    took_ms = dict(zip(WAY, (1000 * (after - before) for before, after in itertools.pairwise(at_s)), strict=True))
    gaps = [(sooner, later) for times in came for sooner, later in itertools.pairwise(times)]
    return {
        "bytes": ref.size_bytes,
        **{f"{key}_ms": round(value, 1) for key, value in took_ms.items()},
        "way_ms": round(sum(took_ms.values()), 1),
        "step_ms": round(1000 * median(later - sooner for sooner, later in gaps if later < at_s[0]), 1),
        "gap_load_ms": round(1000 * max(later - sooner for sooner, later in gaps if sooner < at_s[2] and later > at_s[1]), 1),
    }


async def _stream(arm: Arm, name: str, came: list[float], began: asyncio.Event) -> None:
    """Note when tokens come; `began` is set after some."""
    aims = RequestGoals(time.monotonic() + LENIENT.ttft_s, LENIENT.tpot_s)
    request = StreamRequest(name, rollout(0, None).ids, TOKENS, seed=1, stop_ids=[], adapter="served", goals=aims)
    async with aclosing(stream(arm.engine, request)) as parts:
        async for _ in parts:
            came.append(time.monotonic())
            if len(came) == 8:
                began.set()
