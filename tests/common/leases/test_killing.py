"""Executors are killed at any moment; an observer that belongs to none of them never sees two compute, or more memory than there is."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from common.leases.locks import holders
from common.leases.watchdog import BACKSTOP_S, FENCE_S
from common.resilience.crashpoints import LEASES as POINTS
from common.streams import LEASE_TTL_S
from tests.support.leases.executables import answer, answers, keep_leases, order
from tests.support.leases.process import BUDGET, Stamp, Start, stamp, started
from tests.support.waiting import at_work, eventually

POOLS = ("one", "two", "three")
LOOK_S = 0.01
TRACED_S = 0.003
"""In which a process that computes leaves another trace."""


@dataclass
class Observer:
    """Looks at locks and traces every hundredth of a second, from outside."""

    folder: Path
    looks: int = 0
    objections: list[str] = field(default_factory=list[str])
    seen: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """(process, wake) → first and last time at which it was seen to compute."""

    async def run(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        """Any process may stand still between two lines: one that computed before and after the look at the locks did so meanwhile."""
        before, held = self._stamps(), holders(self.folder)
        looked_ns = time.monotonic_ns()
        time.sleep(TRACED_S)
        after, later = self._stamps(), holders(self.folder)
        self.looks += 1
        lasting = {who: size for who, size in held.memory.items() if later.memory.get(who) == size}
        if sum(lasting.values()) > BUDGET or -1 in lasting.values():
            self.objections.append(f"memory {lasting}")
        for pool, first in before.items():
            last = after[pool]
            working = last.at_ns > looked_ns and (last.pid, last.wake) == (first.pid, first.wake)
            if working and not (held.computing and f"rollout-{pool}" in held.memory):
                self.objections.append(f"{pool} computes, and the locks are {held}")
        for each in (*before.values(), *after.values()):
            interval = self.seen.setdefault((each.pid, each.wake), [each.at_ns, each.at_ns])
            interval[1] = max(interval[1], each.at_ns)

    def _stamps(self) -> Mapping[str, Stamp]:
        return {pool: found for pool in POOLS if (found := stamp(self.folder, pool)) is not None}

    def overlaps(self) -> list[str]:
        """Times at which two computed."""
        ordered = sorted((first, last, who) for who, (first, last) in self.seen.items())
        return [f"{one} until {last}, {other} from {first}" for (_, last, one), (first, _, other) in pairwise(ordered) if first <= last]


@pytest.fixture
def processes() -> Iterator[dict[str, BaseProcess]]:
    running: dict[str, BaseProcess] = {}
    yield running
    for process in running.values():
        process.kill()
        process.join()


async def cold(bus: Bus, pool: str, process: BaseProcess) -> None:
    """Wait until this process has said that it is cold."""
    await eventually(lambda: _said(bus, pool, f"{pool}-{process.pid}"), timeout_s=60)


async def _said(bus: Bus, pool: str, replica: str) -> bool:
    return any(one.replica == replica for one in await answers(bus, pool))


@pytest.mark.parametrize("kills", [10, pytest.param(60, marks=pytest.mark.slow)])
async def test_killed_executors_never_leave_two_that_compute(
    nats_url: str, bus: Bus, tmp_path: Path, processes: dict[str, BaseProcess], kills: int
) -> None:
    chosen, observer, epoch, woken = random.Random(kills), Observer(tmp_path), 0, 0
    starts = {pool: Start(nats_url, tmp_path, pool, max_move_s=0.02) for pool in POOLS}
    for pool in POOLS:
        processes[pool] = started(starts[pool])
        await cold(bus, pool, processes[pool])
    async with at_work(observer.run()) as observing:
        while kills:
            epoch += 1
            next_ = chosen.choice(POOLS)
            for pool in POOLS:
                await order(bus, pool, epoch, wake=pool == next_, tier=chosen.choice((Tier.DEVICE, Tier.HOST)))
            await asyncio.sleep(chosen.uniform(0.0, 0.1))  # what happens in it is for chance to say
            if chosen.random() < 0.5:
                victim = chosen.choice(POOLS)
                processes[victim].kill()
                processes[victim].join()
                processes[victim] = started(starts[victim])
                await cold(bus, victim, processes[victim])
                kills -= 1
            if chosen.random() < 0.3:
                epoch += 1
                for pool in POOLS:
                    await order(bus, pool, epoch, wake=pool == next_)
                assert (await answer(bus, next_, epoch)).state is ExecutorState.AWAKE
                woken += 1
        assert not observing.done(), observing.exception()
    assert observer.looks > 20 and woken > 0
    assert observer.objections == [] and observer.overlaps() == []
    assert len(observer.seen) >= woken / 2


@asynccontextmanager
async def held_by(bus: Bus, start: Start, processes: dict[str, BaseProcess]) -> AsyncGenerator[BaseProcess]:
    process = processes[start.pool] = started(start)
    await cold(bus, start.pool, process)
    yield process


@pytest.mark.parametrize("point", POINTS)
async def test_accelerator_of_an_executor_that_dies_at_any_point_is_in_use_again(
    nats_url: str, bus: Bus, tmp_path: Path, processes: dict[str, BaseProcess], point: str
) -> None:
    await keep_leases(bus)  # the next does not wait for its end
    async with held_by(bus, Start(nats_url, tmp_path, "one", crash_point=f"{point}:1"), processes) as process:
        await order(bus, "one", 1, wake=True)
        if point.endswith("_park"):
            await answer(bus, "one", 1)
            await order(bus, "one", 2, wake=False)
        await asyncio.to_thread(process.join, 60)
        assert process.exitcode == -signal.SIGKILL
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {}
        async with held_by(bus, Start(nats_url, tmp_path, "two"), processes):
            await order(bus, "two", 3, wake=True)
            await answer(bus, "two", 3)


@pytest.mark.parametrize("fault", ["loop", "wake", "interpreter", "lease_before_renew", "lease_after_park", "lease_in_park"])
async def test_executor_that_hangs_ends_and_frees_the_accelerator(
    nats_url: str, bus: Bus, tmp_path: Path, processes: dict[str, BaseProcess], fault: str
) -> None:
    is_in_park = fault.endswith("_park")
    start = Start(nats_url, tmp_path, "one", stalled_in_park_s=1.0)
    start = start if is_in_park else replace(start, stalled_s=1.0, min_limit_s=0.5)
    start = replace(start, crash_point=f"{fault}:1:hang") if fault.startswith("lease_") else replace(start, hangs=fault)
    async with held_by(bus, start, processes) as process:
        await order(bus, "one", 1, wake=True)
        if is_in_park:
            await answer(bus, "one", 1)
            await order(bus, "one", 2, wake=False)
        await asyncio.to_thread(process.join, 60)
        assert process.exitcode == 1
        assert not holders(tmp_path).computing and holders(tmp_path).memory == {}


@pytest.mark.parametrize(("step_s", "drain_s", "ends"), [(1.2, 0.0, False), (1.2, None, False), (1000.0, None, True)])
async def test_step_may_take_ten_times_as_long_as_expected_until_it_counts_as_hung(
    nats_url: str, bus: Bus, tmp_path: Path, processes: dict[str, BaseProcess], step_s: float, drain_s: float | None, ends: bool
) -> None:
    """The event loop turns meanwhile. A move alone may take 0.5 s here."""
    async with (
        held_by(
            bus, Start(nats_url, tmp_path, "one", step_s=step_s, expected_s=0.1 if ends else 0.6, min_limit_s=0.5), processes
        ) as process,
        held_by(bus, Start(nats_url, tmp_path, "two"), processes),
    ):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        await order(bus, "one", 2, wake=False, drain_s=drain_s)
        await order(bus, "two", 2, wake=True)
        assert (await answer(bus, "two", 2)).state is ExecutorState.AWAKE
        if ends:
            await asyncio.to_thread(process.join, 60)
        else:
            assert (await answer(bus, "one", 2)).state is ExecutorState.PARKED
        assert process.exitcode == (1 if ends else None)


async def test_stopped_holder_is_ended_from_outside_before_its_lease_has_expired(
    nats_url: str, bus: Bus, tmp_path: Path, processes: dict[str, BaseProcess]
) -> None:
    """Beside it a process without work outlives its guardian's limit, which is shorter."""
    await keep_leases(bus)
    async with (
        held_by(bus, Start(nats_url, tmp_path, "one"), processes) as process,
        held_by(bus, Start(nats_url, tmp_path, "two"), processes),
        held_by(bus, Start(nats_url, tmp_path, "three", stalled_s=FENCE_S - BACKSTOP_S - 4.0), processes) as idle,
    ):
        await order(bus, "one", 1, wake=True)
        await answer(bus, "one", 1)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        await order(bus, "two", 2, wake=True)
        assert (await answer(bus, "two", 2)).state is ExecutorState.AWAKE
        assert FENCE_S < LEASE_TTL_S and time.monotonic() < stopped_s + FENCE_S + LEASE_TTL_S, "a busy machine may add to it"
        await asyncio.to_thread(process.join, 60)
        assert process.exitcode == -signal.SIGKILL
        assert idle.exitcode is None, "it has outlived its guardian's limit"
