"""Executors in processes of their own, for tests that kill them.

While such an executor is awake, or moves, it "computes": a thread writes into a file of its own which process it is, the how manieth wake
or move of a parked state this is, and the time, as fast as it can. What it holds is what the locks say; whether it computes is what the
file says.
"""

import asyncio
import ctypes
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from common.accelerators import Function, Load, Tier, WorkDone
from common.bus import Bus
from common.leases.context import ExecutorContext, Identity
from common.leases.executor import LeasedExecutor
from common.leases.history import History, Tally
from common.leases.locks import Locks
from common.leases.watchdog import Watchdog
from common.resilience import crashpoints
from common.streams import Consumer
from tests.support.buses import HASTY
from tests.support.leases.executables import ACCELERATOR

BUDGET = 150
RENEW_S = 0.1


@dataclass(frozen=True)
class Start:
    url: str
    folder: Path
    pool: str
    max_move_s: float = 0.0
    hangs: str = ""
    """`loop`: a wake blocks the event loop; `wake`: it never returns; `interpreter`: it blocks all Python code."""
    crash_point: str = ""
    stalled_s: float = 60.0
    stalled_in_park_s: float = 60.0
    """`stalled_s` from its first park on: what comes before may take long."""
    min_limit_s: float = 60.0
    """Minimum time after which a move counts as hung. Short, like `stalled_s`, for an executor that hangs alone: any other may be slow."""
    queues: tuple[Consumer, ...] = ()
    device_bytes: int = 100
    budget_bytes: int = BUDGET
    renew_s: float = RENEW_S
    step_s: float = 0.0
    """Seconds that an operation runs on, once it is ordered to park; it cannot be frozen."""
    expected_s: float = 0.0
    """Seconds that it is expected to run on."""


@dataclass(frozen=True)
class Stamp:
    pid: int
    wake: int
    at_ns: int


def stamp(folder: Path, pool: str) -> Stamp | None:
    """The last trace of an executor's work."""
    path = trace(folder, pool)
    content = path.read_bytes() if path.exists() else b""
    return Stamp(*map(int, content.split())) if content else None


def trace(folder: Path, pool: str) -> Path:
    return folder / f"{pool}.trace"


class Computing:
    def __init__(self, start: Start, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self.tier = Tier.OFF
        self.device_bytes = start.device_bytes
        self.host_bytes = 10
        self._start = start
        self._trace = os.open(trace(start.folder, start.pool), os.O_RDWR | os.O_CREAT)
        self._wakes = 0
        self._works = self._moves = False
        self._writing = threading.Lock()
        threading.Thread(target=self._compute, daemon=True).start()

    @property
    def load(self) -> Load:
        if self._works and self._start.step_s:
            return Load(Function.TRAIN, begun=1, left_s=self._start.expected_s)
        return Load(begun=int(self._works))

    async def wake(self) -> None:
        blocking: Callable[[float], None] = time.sleep
        if self._start.hangs == "loop":
            blocking(1000.0)
        if self._start.hangs == "interpreter":
            ctypes.PyDLL(None).sleep(1000)  # a call that keeps the interpreter's lock
        if self._start.hangs == "wake":
            await asyncio.Event().wait()
        self._wakes += 1
        self._moves = True
        await asyncio.sleep(random.uniform(0, self._start.max_move_s))
        self.tier = Tier.DEVICE
        self._works, self._moves = True, False

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        self._watchdog._stalled_s = min(self._start.stalled_s, self._start.stalled_in_park_s)
        if self._works:
            await asyncio.to_thread(time.sleep, self._start.step_s)  # like a kernel: Python goes on meanwhile
        else:
            self._wakes += 1
        self._moves = True
        self._works = False
        await asyncio.sleep(random.uniform(0, self._start.max_move_s))
        with self._writing:
            self._moves = False
        self.tier = tier
        return 0.01

    def end_drain(self) -> None:
        pass

    def taken(self) -> WorkDone:
        return WorkDone()

    def _compute(self) -> None:
        while True:
            with self._writing:
                if self._works or self._moves:
                    os.pwrite(self._trace, b"%020d %020d %020d" % (os.getpid(), self._wakes, time.monotonic_ns()), 0)
            time.sleep(0.001)


def started(start: Start) -> BaseProcess:
    """The executor's process, forked from one that has all modules: a fresh interpreter would take a second."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_run, args=(start,), daemon=True)
    process.start()
    return process


def _run(start: Start) -> None:
    crashpoints.arm(start.crash_point)
    asyncio.run(_follow(start))


async def _follow(start: Start) -> None:
    me = Identity(ACCELERATOR, "rollout", start.pool, f"{start.pool}-{os.getpid()}")
    history = History(min_limit_s=start.min_limit_s)
    for kind in ((Tier.OFF, Tier.DEVICE), (Tier.DEVICE, Tier.HOST)):
        history.add(*kind, 0.01)
    watchdog = Watchdog(stalled_s=start.stalled_s)
    computing = Computing(start, watchdog)
    async with await Bus.connect(start.url, me.replica, timings=replace(HASTY, ping_every_s=1.0)) as bus:
        means = ExecutorContext(
            bus=bus,
            me=me,
            executable=computing,
            locks=Locks(start.folder, me.executor),
            tally=Tally(computing),
            budget_bytes=start.budget_bytes,
            history=history,
            watchdog=watchdog,
            renew_s=start.renew_s,
        )
        await LeasedExecutor(means, start.queues, has_siblings=False).run()
