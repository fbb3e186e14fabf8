"""A sampler that takes orders: `… sampler OPTIONS`, JSON of `Options`.

fill                    write to the whole KV cache          bytes   [device, cache], as the engine says
park TIER               and freeze at once; [tier, seconds]  wake    [tier, seconds]
use                     sample a little                      sequences END SEED SECONDS
lock                    whether the accelerator's locks are held by this process now
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import llvmlite.binding  # noqa: F401  # pyright: ignore[reportUnusedImport]  vLLM must start beside it: see rollout_svc/engine/cpu/platform.py

from bench.plex.real.tiers.orders import Play, held_from_now, obey, take_output
from bench.plex.real.tiers.traffic import Traffic, request
from common.accelerators import Tier
from common.blobs import Blobs
from common.bus import Bus, Slots
from common.leases import Locks
from common.pools import Pool
from common.runtime.process import collect_rarely
from common.task_states import TaskStates
from rollout_svc.accelerators.sampler import Sampler
from rollout_svc.adapters import Adapters
from rollout_svc.engine import config as engine_config
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.start import import_vllm
from rollout_svc.service import Rollout
from rollout_svc.text.chat import Chat

SLOTS = 64


@dataclass(frozen=True)
class Options:
    model: str
    versions: str
    """Folder of `versions.py`."""
    nats_url: str
    folder: str
    """For adapters that are fetched."""
    device: Literal["cpu", "cuda"]
    core: int
    kv_cache_gib: float
    gpu_memory_share: float
    rank: Literal[8, 16, 32, 64]
    locks: str
    """Folder of the accelerator's locks."""


class SamplerOrders:
    def __init__(self, engine: Engine, sampler: Sampler, traffic: Traffic, locks: Locks) -> None:
        self._engine = engine
        self._sampler = sampler
        self._traffic = traffic
        self._locks = locks

    async def answer(self, verb: str, given: list[str]) -> object:
        match verb:
            case "fill":
                if self._engine.is_cpu:
                    await self._engine.process.worker("fill_cache")
            case "bytes":
                return [self._sampler.device_bytes, self._sampler.device_bytes - self._sampler.host_bytes]
            case "use":
                return (await self._engine.sample(request(0, max_tokens=16))).ids
            case "lock":
                return held_from_now(self._locks)
            case "sequences":
                return await self._traffic.play(Play.of(given))
            case verb:
                began = time.perf_counter()
                await (self._sampler.wake() if verb == "wake" else self._sampler.park(Tier(given[0]), 0))
                return [self._sampler.tier, time.perf_counter() - began]
        return None


@asynccontextmanager
async def opened(options: Options) -> AsyncGenerator[SamplerOrders]:
    if options.device == "cpu":
        engine_config.SLEEPING_WORKER = "bench.plex.real.tiers.worker.FilledWorker"  # pyright: ignore[reportConstantRedefinition]
    pool = Pool(model=options.model, context_tokens=512, max_rank=options.rank, adapters=3, sequences=16)
    locks = Locks(Path(options.locks), "rollout-bench")
    cores = (options.core,) if options.device == "cpu" else ()
    chosen = replace(EngineSettings.of(pool, device=options.device, cores=cores, sleeps=True), locks=locks.descriptors)
    settings = replace(chosen, adapters_held=8, kv_cache_gib=options.kv_cache_gib, gpu_memory_share=options.gpu_memory_share)
    async with await Bus.connect(options.nats_url, "tiers") as bus:
        await bus.declare()
        import_vllm(settings)
        collect_rarely()  # as a service does before its engine is forked: a child's collection copies the pages of what it walks
        engine, blobs, slots = await Engine.start(settings), Blobs(bus), Slots(SLOTS)
        try:
            await engine.warm_up()
            adapters = Adapters(engine, blobs, Path(options.folder), keep=2, keep_s=60, tolerance=engine.canary_tolerance)
            tidying = asyncio.create_task(adapters.run())
            chat = Chat.load(options.model)
            sampler = Sampler(engine, adapters, Rollout(engine, chat, adapters, TaskStates(), slots, lambda _: bus.clock.now_s()), [slots])
            await sampler.park(Tier.DEVICE, 0)  # takes the canary, whose memory for a long prompt stays
            await sampler.wake()
            traffic = await Traffic.begin(engine, sampler, adapters, blobs, Path(options.versions))
            yield SamplerOrders(engine, sampler, traffic, locks)
            tidying.cancel()
        finally:
            engine.process.close()


async def main() -> None:
    answers = take_output()
    given: dict[str, Any] = json.loads(sys.argv[1])
    async with opened(Options(**given)) as orders:
        await obey(answers, orders.answer)


if __name__ == "__main__":
    asyncio.run(main())
