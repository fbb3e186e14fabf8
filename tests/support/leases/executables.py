"""An executor without a device: its state is a word, and its moves take as long as a test says."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.accelerators import Function, Load, Tier, WorkDone
from common.bus import Bus, Outgoing
from common.leases.context import ExecutorContext, Identity
from common.leases.history import Tally
from common.leases.locks import Locks
from common.leases.reconciler import LeaseReconciler
from common.messages import LeaseDone, LeaseOrder
from common.streams import LEASES, LEASES_BUCKET, lease_done, lease_order
from tests.support.waiting import eventually

ACCELERATOR = "a"


class HandClock:
    """A process's own clock, which goes only as a test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


class Paper:
    """A Parkable of the tests."""

    def __init__(self, device_bytes: int = 100) -> None:
        self.tier = Tier.OFF
        self.device_bytes = device_bytes
        self.host_bytes = 10
        self.load = Load()
        self.done = WorkDone()
        self.moves: list[str] = []
        self.failures: list[Exception] = []
        """Raised by the next wakes, the first first."""
        self.may_move = asyncio.Event()
        """While it is not set, moves hang."""
        self.may_move.set()
        self.drains = False
        """Whether a park that hangs waits for requests, which are frozen once its drain is ended."""

    async def wake(self) -> None:
        self.moves.append("wake")
        await self.may_move.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.tier = Tier.DEVICE
        self.load = Load(Function.GENERATE, begun=1)

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        self.moves.append(f"park {tier} {drain_s}")
        await self.may_move.wait()
        self.tier, self.load = tier, Load()
        return 0.125

    def end_drain(self) -> None:
        if self.drains:
            self.drains = False
            self.moves.append("drain ended")
            self.may_move.set()

    def taken(self) -> WorkDone:
        done, self.done = self.done, WorkDone()
        return done


def identity(pool: str, service: str = "rollout", replica: str = "one") -> Identity:
    return Identity(ACCELERATOR, service, pool, replica)


def means(bus: Bus, folder: Path, pool: str, executable: Paper | None = None, **other: Any) -> ExecutorContext:
    """`other`: fields of Means. Executors of one test share `folder`."""
    me = other.pop("me", identity(pool))
    executable = executable or Paper()
    given: dict[str, Any] = {"budget_bytes": 150, "memory_wait_s": 0.2} | other
    return ExecutorContext(bus=bus, me=me, executable=executable, locks=Locks(folder, me.executor), tally=Tally(executable), **given)


def followers(bus: Bus, folder: Path, *pools: str, **other: Any) -> list[tuple[LeaseReconciler, Paper]]:
    found: list[tuple[LeaseReconciler, Paper]] = []
    for pool in pools:
        executable = Paper()
        found.append((LeaseReconciler(means(bus, folder, pool, executable, **other)), executable))
    return found


async def order(
    bus: Bus, pool: str, epoch: int, *, wake: bool, tier: Tier = Tier.HOST, drain_s: float | None = 0.0, service: str = "rollout"
) -> None:
    executor = identity(pool, service).executor
    message = LeaseOrder(accelerator=ACCELERATOR, executor=executor, epoch=epoch, wake=wake, tier=tier, drain_s=drain_s)
    await bus.publish(Outgoing(lease_order(ACCELERATOR, executor), message, f"order:{executor}:{epoch}"))


async def begun(bus: Bus, executors: int = 1) -> None:
    """Wait until so many executors have said that they are cold; they do nothing for orders from before."""

    async def said() -> bool:
        return len(await bus.streams.subjects(LEASES, "leases.done.>")) >= executors

    await eventually(said, timeout_s=60)


async def answers(bus: Bus, pool: str, service: str = "rollout") -> list[LeaseDone]:
    """All answers of an executor so far."""
    subject = lease_done(ACCELERATOR, identity(pool, service).executor)
    return [delivery.read(LeaseDone) async for delivery in bus.streams.stored(LEASES, subject)]


async def answer(
    bus: Bus, pool: str, epoch: int, is_it: Callable[[LeaseDone], bool] = lambda _: True, *, service: str = "rollout"
) -> LeaseDone:
    """The last answer about an epoch, once there is one that is it."""
    found: list[LeaseDone] = []

    async def there() -> bool:
        found[:] = [one for one in await answers(bus, pool, service) if one.epoch == epoch and is_it(one)]
        return bool(found)

    await eventually(there, timeout_s=60)
    return found[-1]


async def shorten_leases(bus: Bus, ttl_s: float) -> None:
    """Let entries of the bucket expire sooner, so that a test need not wait."""
    js = bus.blobs_context()
    config = (await js.stream_info(f"KV_{LEASES_BUCKET}")).config
    await js.update_stream(config.evolve(max_age=ttl_s, duplicate_window=ttl_s))


async def keep_leases(bus: Bus) -> None:
    """Let no entry of the bucket expire while a test waits for an answer."""
    await shorten_leases(bus, 600.0)
