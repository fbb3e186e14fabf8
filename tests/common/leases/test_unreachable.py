"""A holder without NATS: it goes on for a while, then parks itself, by its own clock."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen

import pytest

from common.accelerators import ExecutorState, Tier
from common.bus import Bus
from common.leases.locks import Locks, holders
from common.leases.reconciler import LeaseReconciler
from marlaas.stack import servers
from tests.support.buses import HASTY
from tests.support.leases.executables import HandClock, Paper, answer, begun, means, order
from tests.support.servers import running
from tests.support.waiting import at_work, eventually

IMPATIENT = replace(HASTY, answer_timeout_s=0.2, publish_patience_s=0.5)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[tuple[str, Popen[bytes]]]:
    port = servers.free_port()
    with running(servers.nats_command(tmp_path / "nats", port, sync="1s"), port, tmp_path / "nats.log") as process:
        yield servers.nats_url(port), process


@contextmanager
def silent(server: Popen[bytes]) -> Generator[None]:
    """The server answers nothing inside, and its connections stay."""
    server.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # a thread may go on for a moment, and answer
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)


@asynccontextmanager
async def connected(nats_url: str) -> AsyncGenerator[tuple[Bus, Bus]]:
    """Connections of the scheduler, and of the executor."""
    async with await Bus.connect(nats_url, "test", timings=HASTY) as bus, await Bus.connect(nats_url, "own", timings=IMPATIENT) as own:
        await bus.declare()
        yield bus, own


@asynccontextmanager
async def awake(nats_url: str, folder: Path, clock: HandClock) -> AsyncGenerator[tuple[Bus, LeaseReconciler, Paper]]:
    async with connected(nats_url) as (bus, own):
        paper = Paper()
        follower = LeaseReconciler(means(own, folder, "one", paper, clock=clock, renew_s=0.1))
        async with at_work(follower.run()):
            await begun(bus)
            await order(bus, "one", 1, wake=True)
            await answer(bus, "one", 1, lambda one: one.state is ExecutorState.AWAKE)
            yield bus, follower, paper


async def test_holder_goes_on_without_nats_for_less_than_ten_seconds(nats: tuple[str, Popen[bytes]], tmp_path: Path) -> None:
    clock = HandClock()
    async with awake(nats[0], tmp_path, clock) as (_, follower, paper):

        def is_renewed() -> bool:
            held = follower._lease._held
            return held is not None and held.confirmed_s == clock()

        with silent(nats[1]):
            clock.pass_s(5.0)
            await asyncio.sleep(0.5)  # several looks at the clock, each of which must change nothing
            assert follower.state is ExecutorState.AWAKE and holders(tmp_path).computing
        for _ in range(3):  # together more than ten, but renewed in between
            clock.pass_s(4.0)
            await eventually(is_renewed)
        assert follower.state is ExecutorState.AWAKE
    assert paper.moves == ["wake"]


async def test_holder_parks_itself_after_ten_seconds_without_nats_and_reports_it_later(
    nats: tuple[str, Popen[bytes]], tmp_path: Path
) -> None:
    clock = HandClock()
    async with awake(nats[0], tmp_path, clock) as (bus, follower, paper):
        with silent(nats[1]):
            clock.pass_s(60.0)
            await eventually(lambda: follower.state is ExecutorState.PARKED, timeout_s=60)
            assert paper.moves == ["wake", "park host 0.0"]
            assert not holders(tmp_path).computing and holders(tmp_path).memory == {}
        parked = await answer(bus, "one", 1, lambda one: one.state is ExecutorState.PARKED)
        assert parked.tier is Tier.HOST and parked.failure is not None and "lease was not confirmed" in parked.failure
        await order(bus, "one", 2, wake=True)
        assert (await answer(bus, "one", 2)).state is ExecutorState.AWAKE


async def test_drain_ends_after_ten_seconds_without_nats(nats: tuple[str, Popen[bytes]], tmp_path: Path) -> None:
    """A park that waits for requests, however long they take, does so only while its lease is confirmed."""
    clock = HandClock()
    async with awake(nats[0], tmp_path, clock) as (bus, follower, paper):
        paper.may_move.clear()
        paper.drains = True
        await order(bus, "one", 2, wake=False, drain_s=None)
        await eventually(lambda: paper.moves == ["wake", "park host None"])
        with silent(nats[1]):
            assert holders(tmp_path).computing
            clock.pass_s(60.0)
            await eventually(lambda: follower.state is ExecutorState.PARKED, timeout_s=60)
            assert not holders(tmp_path).computing
        assert (await answer(bus, "one", 2)).state is ExecutorState.PARKED
    assert paper.moves == ["wake", "park host None", "drain ended"]


async def test_executor_that_waits_for_memory_does_not_wake_without_nats(nats: tuple[str, Popen[bytes]], tmp_path: Path) -> None:
    async with connected(nats[0]) as (bus, own):
        paper = Paper()
        ground = means(own, tmp_path, "one", paper, renew_s=0.1, memory_wait_s=60.0)
        other = Locks(tmp_path, "rollout-other")
        assert other.take_compute() and other.reserve(100, 150) is None
        other.release_compute()
        follower = LeaseReconciler(ground)
        async with at_work(follower.run()):
            await begun(bus)
            await order(bus, "one", 1, wake=True)
            await eventually(lambda: follower._room.free_since_s is not None, 60)
            with silent(nats[1]):
                other.release_memory()
                await eventually(lambda: "rollout-one" in holders(tmp_path).memory, 60)
                await asyncio.sleep(0.5)
                assert paper.moves == [] and holders(tmp_path).computing
            assert (await answer(bus, "one", 1)).state is ExecutorState.AWAKE
