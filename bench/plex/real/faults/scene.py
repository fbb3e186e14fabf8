"""A running stack as faults see it: its processes, rows of PostgreSQL, and who holds the accelerator. Times are Unix seconds."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness.services import BenchError
from bench.plex.real.faults.armed import REACHED
from bench.plex.real.faults.rows import Rows
from bench.plex.real.recorder import Recording
from common.streams import LEASE_TTL_S
from marlaas.client import Client
from marlaas.stack.state_files import Component, read_stack

LOOK_S = 0.05
PATIENCE_S = 120.0
"""Maximum time until a stack has recovered from a fault."""
NEXT_AWAKE = """
SELECT s.executor, extract(epoch FROM s.awake_at)::float, m.seconds, s.from_tier FROM slices s
LEFT JOIN moves m ON m.accelerator = s.accelerator AND m.executor = s.executor AND m.epoch = s.epoch AND m.to_tier = 'device'
WHERE s.awake_at > to_timestamp(%s) ORDER BY s.awake_at LIMIT 1
"""


@dataclass(frozen=True)
class InUse:
    """The accelerator computes again."""

    by: str
    """The executor that woke, or had never stopped."""
    after_s: float
    """Seconds from the fault's end until it was awake; 0 where it was all the time."""
    lock_after_s: float | None
    """Seconds until the recorder saw the compute lock held."""
    wake_s: float
    """Duration of the wake's move."""

    def described(self) -> dict[str, Any]:
        allowed_s = LEASE_TTL_S + self.wake_s
        lock_s = None if self.lock_after_s is None else round(self.lock_after_s, 2)
        found = {"in_use_after_s": round(self.after_s, 2), "lock_after_s": lock_s, "wake_s": round(self.wake_s, 2), "by": self.by}
        return found | {"allowed_s": round(allowed_s, 2), "within": self.after_s <= allowed_s}


@dataclass(frozen=True)
class Scene:
    data: Path
    models: Path
    """Folder of the models' folders, which are this run's own."""
    client: Client
    stored: Rows
    recording: Recording

    # ------------------------------------------------------------------------------------------------------- processes

    def component(self, name: str) -> Component:
        stack = read_stack(self.data)
        assert stack is not None
        return stack.component(name)

    def process(self, name: str) -> psutil.Process:
        """Raises: BenchError while it does not run."""
        found = self.component(name).process
        if found is None:
            raise BenchError(f"{name} does not run")
        return psutil.Process(found.pid)

    def family(self, name: str) -> list[psutil.Process]:
        process = self.process(name)
        return [process, *process.children(recursive=True)]

    async def ready(self) -> None:
        """Wait until every process is ready."""

        async def look() -> bool:
            stack = read_stack(self.data)
            return stack is not None and stack.is_ready

        await until(look, "every process is ready")

    async def death(self, process: psutil.Process, patience_s: float = PATIENCE_S) -> float:
        """Wait until the process has ended; returns when."""

        async def look() -> bool:
            try:
                return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return True

        await until(look, f"process {process.pid} has ended", patience_s, every_s=0.01)
        return time.time()

    # ---------------------------------------------------------------------------------------------------------- points

    def arm(self, service: str, setting: str) -> None:
        """Arm a crash point in a running service, as MARLAAS_CRASH_POINT has it."""
        descriptor = os.open(self._pipe(service), os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(descriptor, f"{setting}\n".encode())
        finally:
            os.close(descriptor)

    def reached(self, service: str) -> list[tuple[str, float]]:
        """Points that the service has reached armed, and when; oldest first."""
        path = self._pipe(service)
        path = path.with_name(path.name + REACHED)
        lines = path.read_text().splitlines() if path.exists() else []
        return [(line.split()[0], float(line.split()[1])) for line in lines]

    def _pipe(self, service: str) -> Path:
        return pipe(self.data, service)

    # ------------------------------------------------------------------------------------------------------------ rows

    async def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Repeated until PostgreSQL answers."""
        return await self.stored.ask(query, *values)

    async def tier(self, executor: str) -> tuple[str, str, int]:
        """State, tier, and number of failed attempts to wake since it last woke."""
        state, tier, faults = (await self.rows("SELECT state, tier, faults FROM executors WHERE id = %s", executor))[0]
        return str(state), str(tier), int(faults)

    # ----------------------------------------------------------------------------------------------------- accelerator

    @property
    def holder(self) -> str | None:
        """Executor that held the compute lock at the recorder's latest look."""
        return next(iter(self.recording.looks[-1].holders), None) if self.recording.looks else None

    async def holds(self, executor: str, patience_s: float = PATIENCE_S) -> None:
        async def look() -> bool:
            return self.holder == executor

        await until(look, f"{executor} holds the accelerator", patience_s, every_s=0.01)

    async def in_use(self, since_s: float, *, again: bool = True) -> InUse:
        """Wait until an executor has woken after `since_s`. `again` False: one that holds the lock then has never stopped."""
        if not again and self.holder is not None:
            return InUse(self.holder, 0.0, 0.0, 0.0)
        found = list[tuple[Any, ...]]()

        async def look() -> bool:
            found[:] = await self.rows(NEXT_AWAKE, since_s)
            return bool(found)

        await until(look, "the accelerator is in use")
        by, awake_s, wake_s, _ = found[0]
        await until(lambda: self._has_looked(awake_s), "the recorder looks")
        locked_s = self._locked_s(since_s)
        return InUse(str(by), awake_s - since_s, None if locked_s is None else locked_s - since_s, float(wake_s or 0.0))

    async def _has_looked(self, at_s: float) -> bool:
        return self.recording.looks[-1].at_s > at_s

    def _locked_s(self, since_s: float) -> float | None:
        """When the recorder first saw the lock held after it was free, or by another. Children of a dead process have it for a moment."""
        before: frozenset[str] | None = None
        for one in self.recording.looks:
            if one.at_s <= since_s:
                before = one.holders
            elif one.holders and one.holders != before:
                return one.at_s
            else:
                before = one.holders
        return None


def pipe(data: Path, service: str) -> Path:
    """Named pipe through which crash points of a service are armed."""
    return data / f"{service}.armed"


async def until(look: Callable[[], Awaitable[bool]], what: str, patience_s: float = PATIENCE_S, *, every_s: float = LOOK_S) -> None:
    """Raises: BenchError when it is not true in time."""
    ends_s = time.monotonic() + patience_s
    while not await look():
        if time.monotonic() > ends_s:
            raise BenchError(f"after {patience_s:.0f} s not yet: {what}")
        await asyncio.sleep(every_s)
