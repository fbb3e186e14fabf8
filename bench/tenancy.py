"""What keys cost their holders: `python -m bench.tenancy`. Writes bench/results/tenancy.json.

    python -m bench.tenancy [--connects 100] [--submits 60] [--asks 300] [--downloads 5] [--mib 64] [--steps 12] [--runs 3]

Two stacks run side by side, one that is open and one with keys, where the client holds an owner's. Each measure is taken of both in turn:
connecting; submitting a task until it is accepted (it is cancelled at once); asking for all tasks; downloading an adapter of `--mib` MiB
through the scheduler, on the open stack also straight from the object store, as before there were keys; and the steps per second of
a whole training task. Ratios are medians of pairs, keys over open.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench.harness import report
from bench.harness.services import local_stack
from bench.isolation import spec
from bench.rogue import Keys
from common.access.folder import credentials_path, open_folder
from common.blobs import Blobs
from common.bus import Bus
from common.messages import BlobRef
from common.spec import TaskSpec
from marlaas.client import Client
from marlaas.stack import servers
from marlaas.stack.state_files import Stack

NAME = "tenancy"
TENANT = "acme"
MIB = 2**20


@dataclass
class Side:
    """One of the two stacks, as its client sees it."""

    stack: Stack
    creds: Path | None
    trainer_creds: Path | None
    client: Client
    measured: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    large: BlobRef | None = None
    number: int = 0

    def task(self, steps: int) -> TaskSpec:
        self.number += 1
        sections = {"algorithm": {"groups_per_step": 4, "max_staleness": 1}, "lora": {"rank": 8}}
        return spec(f"task-{self.number}", self.number, steps, 0, sections).model_copy(update={"tenant": TENANT})

    async def connect(self) -> None:
        async with Client.connect(self.stack.nats_url, TENANT, creds=self.creds):
            pass

    async def submit(self) -> None:
        self.submitted = await self.client.submit(self.task(1000))

    async def ask(self) -> None:
        await self.client.tasks()

    async def download(self) -> None:
        with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
            await self.client.pull(self.trained, Path(folder) / "adapter", 1)

    async def fetch(self) -> None:
        """The same blob, read from the object store by the client itself."""
        assert self.large is not None
        async with await Bus.connect(self.stack.nats_url, "bench", creds=self.trainer_creds) as bus:
            with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
                await Blobs(bus).fetch_folder(self.large, Path(folder) / "adapter")

    async def train(self, steps: int) -> str:
        """Train a task to its end; returns its id."""
        task = await self.client.submit(self.task(steps))
        status = await self.client.wait(task)
        if status.state != "finished":
            sys.exit(f"the task ended otherwise: {status.state}: {status.reason}")
        return task

    async def enlarge(self, mib: int) -> None:
        """Have version 1 of a trained task refer to an adapter of `mib` MiB. No task of the tiny model has one."""
        self.trained = await self.train(1)
        async with await Bus.connect(self.stack.nats_url, "bench", creds=self.trainer_creds) as bus:
            with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
                await asyncio.to_thread((Path(folder) / "adapter.bin").write_bytes, os.urandom(mib * MIB))
                self.large = await Blobs(bus).put_folder(f"{self.trained}.v1.adapter", Path(folder))
        blob = json.dumps(self.large.model_dump(mode="json"))
        url = self.stack.database_url.replace("+psycopg", "").replace(servers.READER, servers.OWNER)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE steps SET adapter = jsonb_set(adapter, '{blob}', %s::jsonb) WHERE task = %s", (blob, self.trained))
            connection.execute(
                "INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES (%s, %s, 1, 'adapter', %s)",
                (self.large.name, self.trained, self.large.size_bytes),
            )


async def in_turn(sides: list[Side], name: str, count: int, action: Callable[[Side], Awaitable[object]]) -> None:
    """Measure milliseconds of the action on both stacks `count` times, one after the other, first the one and then the other first."""
    for round_number in range(count):
        for side in sides if round_number % 2 else sides[::-1]:
            began = time.perf_counter()
            await action(side)
            side.measured.setdefault(name, []).append(1000 * (time.perf_counter() - began))
            if name == "submit_ms":
                await side.client.cancel(side.submitted)


async def measure(sides: list[Side], options: argparse.Namespace) -> None:
    for side in sides:
        await side.train(1)  # so that all models are loaded
        await side.enlarge(options.mib)
    await in_turn(sides, "connect_ms", options.connects, Side.connect)
    await in_turn(sides, "ask_ms", options.asks, Side.ask)
    await in_turn(sides, "submit_ms", options.submits, Side.submit)
    await in_turn(sides, "download_ms", options.downloads, Side.download)
    await in_turn(sides[:1], "object_store_ms", options.downloads, Side.fetch)
    await in_turn(sides, "task_ms", options.runs, lambda side: side.train(options.steps))


async def run(stacks: list[Stack], folder: Path, options: argparse.Namespace) -> list[Side]:
    keys = Keys(stacks[1].nats_url, open_folder(folder))
    owner = await keys.tenant(TENANT)
    async with AsyncExitStack() as clients:
        sides: list[Side] = []
        for stack, creds in zip(stacks, (None, owner), strict=True):
            client = await clients.enter_async_context(Client.connect(stack.nats_url, TENANT, creds=creds))
            trainer = credentials_path(folder, "trainer") if creds else None
            sides.append(Side(stack, creds, trainer, client))
        await measure(sides, options)
    return sides


def ratio(name: str, opened: Side, keyed: Side) -> float:
    pairs = zip(keyed.measured[name], opened.measured[name], strict=True)
    return round(statistics.median(one / other for one, other in pairs), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"connects": 100, "submits": 60, "asks": 300, "downloads": 5, "mib": 64, "steps": 12, "runs": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": report.machine(), "adapter_mib": options.mib, "steps": options.steps}
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-keys-") as folder:
        keys = Path(folder) / "keys"
        with local_stack(without_keys=True) as opened, local_stack(keys=keys) as keyed:
            sides = asyncio.run(run([opened, keyed], keys, options))
    for name, side in zip(("open", "keys"), sides, strict=True):
        result[name] = {measure: report.spread(values) for measure, values in side.measured.items()}
    result["ratios"] = {name: ratio(name, *sides) for name in sides[1].measured}
    print(json.dumps(result["ratios"], indent=1), file=sys.stderr)
    print(f"written: {report.write(NAME, result)}")


if __name__ == "__main__":
    main()
