"""Processor time of parked services, as `marlaas up` starts them: with reports, heartbeats, leases and metrics.

Two pools of one base model are on an accelerator, one parked in host memory and one on a disk. An operator wakes each executor and parks
it. Then nothing happens, and the kernel says how much processor time each service used, with its engine.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.keys import operator
from bench.harness.measures import usage
from bench.harness.services import BenchError, local_stack
from bench.plex.real.recorder import Executor, executors
from common.accelerators import ExecutorState, Tier
from common.messages.accelerators import ExecutorOf
from marlaas.client import Client, ClientError
from marlaas.stack.state_files import Stack

TIERS = (Tier.HOST, Tier.DISK)
SERVICES = ("rollout", "trainer")
WAIT_S = 120.0
"""Maximum seconds of one move, an engine's start included."""
POLL_S = 0.5
SETTLE_S = 5.0
"""Seconds between the last move and the measurement."""
ACCELERATOR = """
[accelerator.shared]
device = "cpu"
cores = "{core}"
memory_gib = 8
"""
POOL = """
[{tier}]
model = "{model}"
on = "shared"
parked = "{tier}"
context_tokens = 512
sequences = 16
kv_cache_gib = 0.25
train_tokens = 1024
"""


def parked_services(model: Path, core: int, window_s: float) -> dict[str, Any]:
    """Share of a core that each parked executor uses over `window_s`. Raises: BenchError when one does not wake or park."""
    with tempfile.TemporaryDirectory(prefix="marlaas-parked-") as name:
        file = Path(name) / "pools.toml"
        file.write_text(ACCELERATOR.format(core=core) + "".join(POOL.format(tier=tier, model=model) for tier in TIERS))
        with local_stack(file) as stack:
            tiers = asyncio.run(_parked(stack))
            time.sleep(SETTLE_S)
            processes = executors(stack)
            load = report.load_now()
            before, began_s = {executor: _cpu_s(one) for executor, one in processes.items()}, time.monotonic()
            time.sleep(window_s)
            after, took_s = {executor: _cpu_s(one) for executor, one in processes.items()}, time.monotonic() - began_s
    shares = {executor: round((after[executor] - before[executor]) / took_s, 5) for executor in sorted(processes)}
    return {
        "window_s": round(took_s, 1),
        "executors": {executor: {"tier": tiers[executor], "processor_share": share} for executor, share in shares.items()},
        "asked": {"load": load, "commit": report.commit()},
    }


def _cpu_s(service: Executor) -> float:
    return sum(map(usage.cpu_s, usage.family(service.process)))


async def _parked(stack: Stack) -> dict[str, str]:
    """Wake each executor and park it; the tier of each."""
    found: dict[str, str] = {}
    try:
        async with operator(stack) as client:
            for tier in TIERS:
                for service in SERVICES:
                    await client.accelerators.order(tier, "wake", service=service)
                    await _reached(client, tier, service, Tier.DEVICE)
                    await client.accelerators.order(tier, "park", service=service)
                    one = await _reached(client, tier, service, tier)
                    found[one.executor] = one.tier.value
    except ClientError as error:
        raise BenchError(str(error)) from None
    return found


async def _reached(client: Client, pool: str, service: str, tier: Tier) -> ExecutorOf:
    """An executor without work is awake for a moment only, then paused on the device."""
    one, ends_s = None, time.monotonic() + WAIT_S
    while time.monotonic() < ends_s:
        one = next((one for one in await client.accelerators.executors(pool) if one.service == service), None)
        if one is not None and one.tier is tier and (one.state is ExecutorState.PARKED or tier is Tier.DEVICE):
            return one
        await asyncio.sleep(POLL_S)
    raise BenchError(f"the {service} of pool {pool} is not in tier {tier} after {WAIT_S:.0f} s: {one}")
