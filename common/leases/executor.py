"""Assembles the lease components of an executor for one process."""

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from common.accelerators import ExecutorState, Parkable, off_device
from common.accelerators.memory import driver_memory
from common.bus import Bus, Handler, Slots
from common.errors import Fatal
from common.homes import AWAKE, BEGUN, OWN_QUEUE, Member, Queues
from common.homes.queues import CONSUMERS
from common.leases.context import ExecutorContext, Identity, no_driver
from common.leases.history import History, Tally
from common.leases.locks import Locks
from common.leases.reconciler import LeaseReconciler
from common.leases.reports import Reading, Reporter
from common.leases.watchdog import Watchdog
from common.pools import Accelerator, Pool, cpu_cores, read_accelerators, read_pools
from common.pools.memory import DEVICE_SHARE, GIB
from common.streams import Consumer


class LeasedExecutor:
    """A sampler or trainer that computes only while it holds the lease. Parked without work, it uses almost no processor time."""

    def __init__(
        self,
        context: ExecutorContext,
        consumers: Sequence[Consumer],
        *,
        has_siblings: bool,
        show: Callable[[bool], None] = lambda _: None,
        siblings: Queues | None = None,
    ) -> None:
        """`consumers`: its queues. `has_siblings`: whether other executors share them. `siblings`: as in Reading. `show`: called at each
        change of state; its argument says whether the executor is awake.
        """
        self._watchdog = context.watchdog
        self._show = show
        self._own_queue = f"{OWN_QUEUE}@{context.me.accelerator}"
        self._siblings = siblings
        self._reporter = Reporter(context, consumers, has_siblings=has_siblings, siblings=siblings)
        self._follower = LeaseReconciler(context, self._changed)

    def _changed(self) -> None:
        self._reporter.changed()
        self._show(self._follower.state is ExecutorState.AWAKE)

    @property
    def busy(self) -> dict[str, float]:
        """Load figures for the replica report, read by sibling executors and the scheduler."""
        state = self._follower.state
        found = {BEGUN: 0.0, AWAKE: float(state is ExecutorState.AWAKE)}
        found |= {name: float(count) for name, count in self._reporter.begun_by_queue.items()}
        if self._siblings is None or not self._siblings.reads_own:
            return found
        return found | {self._own_queue: float(state is not ExecutorState.FAULTY)}

    async def run(self) -> None:
        """Follow orders and report, until cancelled. Raises: Fatal."""
        self._watchdog.start()
        try:
            async with asyncio.TaskGroup() as runners:
                runners.create_task(self._follower.run())
                runners.create_task(self._reporter.run(self._follower))
        finally:
            self._watchdog.stop()


@dataclass(frozen=True)
class Placed:
    """An executor with its pool and accelerator from the pools file."""

    me: Identity
    pool: Pool
    accelerator: Accelerator
    cpu_cores: frozenset[int]
    """All cores that are shared accelerators, its own and others'."""

    @property
    def siblings(self) -> list[str]:
        """Accelerators of its pool's other executors of this service."""
        return [each for each in _places(self.pool, self.me.service) if each != self.me.accelerator]

    def reading(
        self, bus: Bus, slots: Slots, handler: Handler, *, move_s: Callable[[], float], max_pull: int = 64
    ) -> tuple[Reading, Coroutine[Any, Any, None]]:
        """Queues that the executor reads, and a coroutine that runs `handler` for each message in them. Only the pool's queue if its pool
        is on no other accelerator. Arguments: as in `Bus.consume` and `Queues`."""
        if self.siblings:
            me = Member(self.me.service, self.me.pool, self.me.accelerator, self.me.replica)
            queues = Queues(bus, me, self.siblings, slots, move_s, self.accelerator.max_wait_s)
            return Reading(queues.own, queues), queues.consume(handler, max_pull=max_pull)
        consumer = CONSUMERS[self.me.service](self.me.pool)
        return Reading([consumer]), bus.consume(consumer, handler, slots, max_pull=max_pull)

    def locks(self, accelerators_dir: Path) -> Locks:
        """Its locks, which all processes that compute for it must hold. Raises: Fatal if they cannot be used."""
        return Locks(accelerators_dir / self.me.accelerator, self.me.executor)

    def cores_to_leave(self, cores: Collection[int]) -> tuple[frozenset[int], ...]:
        """Arguments `choices` of `process.leave`, best first: all shared cores, or only `cores`, the executor's own.

        Empty for an executor of a GPU: its engine is spawned, and inherits the affinity of the thread that starts it.
        """
        return (self.cpu_cores.union(cores), frozenset(cores)) if self.accelerator.on_cpu and cores else ()


def placed(me: Identity, pools_file: Path) -> Placed:
    """Look an executor up in the pools file. Raises: Fatal if the file has no such pool or accelerator, or does not place it there."""
    pools = read_pools(pools_file)
    accelerators = read_accelerators(pools_file, pools)
    places = _places(pools[me.pool], me.service)
    if me.accelerator not in places:
        raise Fatal(
            f"MARLAAS_{me.service.upper()}_ACCELERATOR is '{me.accelerator}', but {pools_file} puts the {me.service} of pool "
            f"'{me.pool}' on {', '.join(places) or 'no shared accelerator'}"
        )
    accelerator, count = accelerators[me.accelerator], os.cpu_count() or 1
    if absent := [core for core in accelerator.cores if core >= count]:
        raise Fatal(f"{pools_file}: accelerator.{me.accelerator}.cores has {absent[0]}, but this machine has 0 to {count - 1}; correct it")
    return Placed(me, pools[me.pool], accelerator, cpu_cores(accelerators))


def leased_executor(
    bus: Bus,
    where: Placed,
    executable: Parkable,
    locks: Locks,
    reads: Reading,
    *,
    data_dir: Path,
    show: Callable[[bool], None],
) -> LeasedExecutor:
    """Assemble the executor. Call this before `executable` uses the device. `locks`: as returned by `Placed.locks`."""
    me, accelerator = where.me, where.accelerator
    context = ExecutorContext(
        bus=bus,
        me=me,
        executable=executable,
        locks=locks,
        tally=Tally(executable),
        budget_bytes=budget_bytes(accelerator),
        fence_tier=off_device(where.pool.deepest_tier),
        history=History(data_dir / "moves" / f"{me.accelerator}.{me.executor}.json"),
        watchdog=Watchdog(),
        free_bytes=no_driver if accelerator.on_cpu else partial(_free_bytes, accelerator.device),
    )
    return LeasedExecutor(context, reads.consumers, has_siblings=bool(where.siblings), show=show, siblings=reads.siblings)


def budget_bytes(accelerator: Accelerator) -> int:
    """Bytes that all executors of the accelerator may use on its device. Raises: Fatal if neither pools file nor driver gives the size."""
    if accelerator.memory_gib is not None:
        return int(accelerator.memory_gib * GIB)
    return int(DEVICE_SHARE * driver_memory(accelerator.device).total_bytes)


def _places(pool: Pool, service: str) -> tuple[str, ...]:
    """Accelerators on which the pool has samplers, or trainers."""
    return pool.samplers_on if service == "rollout" else pool.trainers_on


async def _free_bytes(device: str) -> int | None:
    return (await asyncio.to_thread(driver_memory, device)).free_bytes
