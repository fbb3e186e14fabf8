"""An adapter version's bytes and way to its first token, and the gaps of streams meanwhile: rank 32, a base model of Qwen3-0.6B's shape.

The way: the blob fetched from NATS on this machine, read by the engine, a canary's log-probabilities, a first token. Streams run without
rollouts, so that their gaps are those of a request alone but for the load.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Any

from bench.coserving.engine import ArmEngine, arm_engine
from bench.coserving.load import PROMPT, WORDS, rollout
from bench.coserving.sums import Options, Row, at_most
from bench.engine import write_adapter
from bench.harness import models, services
from common.blobs import Blobs
from common.bus import Bus
from rollout_svc.engine.stream import RequestGoals, StreamRequest, stream

RANK = 32
STREAMS = 4
VERSIONS = 5
CANARY_TOKENS = 64
MAX_GAP = 4.0
"""Multiple of the goal for further tokens, itself twice their median alone, above which a load would have to wait."""
MAX_SHARE = 0.05


def run(options: Options) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name, services.nats(Path(name)) as url:
        folder = Path(name)
        shape, precision = (models.SMALL, torch.float32) if options.small else (models.QWEN3_0_6B, torch.float32)
        model = models.write_model(shape, precision, folder / "model")
        return asyncio.run(_run(options, model, folder, url))


async def _run(options: Options, model: Path, folder: Path, url: str) -> dict[str, Any]:
    changes = {"model": str(model), "max_rank": RANK, "adapters": 2, "adapters_held": 2 * VERSIONS, "kv_cache_gib": 0.5}
    async with arm_engine("ours", options.device, folder, 0, **changes) as arm, await Bus.connect(url, "bench") as bus:
        await bus.declare()
        rows = [await _version(arm, Blobs(bus), folder, number) for number in range(2 if options.small else VERSIONS)]
    fetch = median(row["fetch_ms"] / row["way_ms"] for row in rows)
    gap = median(row["gap_load_ms"] / row["goal_ms"] for row in rows)
    checks = [
        at_most("share of the bytes in the way to the first token", fetch, MAX_SHARE),
        at_most("longest gap while a version loads, over the goal", gap, MAX_GAP),
    ]
    return {"model": model.name if options.small else "qwen3-0.6b", "rank": RANK, "rows": rows, "checks": checks}


async def _version(arm: ArmEngine, blobs: Blobs, folder: Path, number: int) -> Row:
    """A version's way, while streams run."""
    made = folder / f"made-{number}"
    write_adapter(Path(arm.engine.settings.model), made, 100 + number, RANK)
    ref, name = await blobs.put_folder(f"bench.v{number}.adapter", made), f"version-{number}"
    came: list[list[float]] = [[] for _ in range(STREAMS)]
    streams = [asyncio.create_task(_stream(arm, f"{number}-{place}", times)) for place, times in enumerate(came)]
    while min(map(len, came)) < 8:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    at_s = [time.monotonic()]
    fetched = await blobs.fetch_folder(ref, folder / name)
    at_s.append(time.monotonic())
    await arm.engine.load(name, fetched)
    at_s.append(time.monotonic())
    await arm.engine.prompt_logprobs([3 + token % WORDS for token in range(CANARY_TOKENS)], name)
    at_s.append(time.monotonic())
    await arm.engine.sample(rollout(number, name, "first"))
    at_s.append(time.monotonic())
    for one in streams:
        one.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await arm.engine.unload(name)
    fetch, load, canary, first = (1000 * (after - before) for before, after in itertools.pairwise(at_s))
    step_ms = 1000 * median(_gaps(came, 0.0, at_s[0]))
    return {
        "bytes": ref.size_bytes,
        **{f"{key}_ms": round(value, 1) for key, value in {"fetch": fetch, "load": load, "canary": canary, "first": first}.items()},
        "way_ms": round(fetch + load + canary + first, 1),
        "step_ms": round(step_ms, 1),
        "goal_ms": round(2 * step_ms, 1),
        "gap_load_ms": round(1000 * max(_gaps(came, at_s[1], at_s[2])), 1),
        "gap_fetch_ms": round(1000 * max(_gaps(came, at_s[0], at_s[1])), 1),
    }


async def _stream(arm: ArmEngine, name: str, came: list[float]) -> None:
    request = StreamRequest(
        f"stream-{name}",
        [3 + token % WORDS for token in range(PROMPT)],
        arm.engine.settings.context_tokens - PROMPT,
        seed=1,
        stop_ids=[],
        adapter=arm.adapters[0],
        goals=RequestGoals(time.monotonic() + 60.0, 60.0),
    )
    async with aclosing(stream(arm.engine, request)) as parts:
        async for _ in parts:
            came.append(time.monotonic())


def _gaps(came: Sequence[Sequence[float]], begin_s: float, end_s: float) -> list[float]:
    """Seconds between tokens of each stream, of gaps that lie in the span or overlap it."""
    return [later - sooner for times in came for sooner, later in itertools.pairwise(times) if sooner < end_s and later > begin_s]
