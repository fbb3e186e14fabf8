"""Test doubles of executors: they follow orders, answer and report with the real messages over a real NATS, and compute nothing.

`Device` stands for the accelerator's lock: it fails the test where two are awake at once.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from common import streams
from common.accelerators import ExecutorState, Function, Tier
from common.bus import Bus, Outgoing
from common.messages import ExecutorReport, LeaseDone, LeaseOrder, PoolClock
from common.pools import Accelerator, Pool, Pools
from common.pools.accelerators import Accelerators
from scheduler_svc.accelerators.leader import Leader
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.service import Scheduler
from scheduler_svc.settings import SchedulerSettings
from tests.support.scheduler.stages import ended
from tests.support.scheduler.statements import Queried
from tests.support.waiting import eventually

MIB = 2**20
ACCELERATOR = Accelerator(device="cpu", cores=(1,), memory_gib=1.0, max_wait_s=60.0)
ACCELERATORS: Accelerators = {"a": ACCELERATOR}
POOLS: Pools = {name: Pool(model="models/tiny", context_tokens=512, max_rank=16, on="a") for name in ("one", "two")}


SPEC = '{"limits": {"episode_timeout_s": 86400}}'


@dataclass
class Device:
    """The lock that an executor has while it is awake."""

    holder: str | None = None
    awake: list[str] = field(default_factory=list[str])
    """Executors in the order in which they had it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, executor: str) -> None:
        while self.holder is not None:
            self.changed.clear()
            await self.changed.wait()
        self.holder = executor
        self.awake.append(executor)

    def free(self, executor: str) -> None:
        if self.holder == executor:
            self.holder = None
            self.changed.set()


@dataclass
class Executor:
    """`served` is what it says that it has served since it woke."""

    bus: Bus
    device: Device
    service: str
    pool: str
    replica: str = "r1"
    accelerator: str = "a"
    device_bytes: int = 700 * MIB
    state: ExecutorState = ExecutorState.COLD
    tier: Tier = Tier.NONE
    epoch: int = 0
    ready: int = 0
    begun: int = 0
    pieces: int = 0
    ready_since_s: float | None = None
    served: dict[str, int] = field(default_factory=dict[str, int])
    busy_ms: int = 0
    score_ms: int = 0
    failure: str | None = None
    """Why it cannot wake."""
    died_of: str | None = None
    """Why the process before it ended, as it found that."""
    lacks_memory: bool | None = None
    """Tasks with members that are with their environments."""
    is_deaf: bool = False
    """Whether it does nothing that it is ordered to."""
    is_mute: bool = False
    """Whether it reports nothing."""
    orders: list[LeaseOrder] = field(default_factory=list[LeaseOrder])
    move_s: float = 0.01
    drain_s: float = 0.0
    """Seconds until what it has begun has ended, once it is ordered to park."""
    sent: int = 0
    """Number of its answers."""
    losses: int = 0
    """So many of its next answers are lost."""

    @property
    def name(self) -> str:
        return f"{self.service}-{self.pool}"

    async def run(self) -> None:
        """Follow and report, until cancelled."""
        await self.answer(self.epoch, ExecutorState.COLD, self.tier, failure=self.died_of)
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._report())
            runners.create_task(self._follow())

    async def _report(self) -> None:
        while True:
            await self.tell()
            await asyncio.sleep(0.2)

    async def tell(self, **changes: object) -> None:
        if not self.is_mute:
            await self.bus.requests.send(streams.executor_now(self.accelerator, self.name), self.report(**changes))

    def report(self, **changes: object) -> ExecutorReport:
        report = ExecutorReport(
            accelerator=self.accelerator,
            executor=self.name,
            pool=self.pool,
            replica=self.replica,
            epoch=self.epoch,
            state=self.state,
            tier=self.tier,
            device_bytes=self.device_bytes,
            host_bytes=MIB,
            running=(Function.GENERATE if self.service == "rollout" else Function.TRAIN) if self.begun and self.is_awake else None,
            begun=self.begun,
            ready=self.ready,
            ready_since_s=self.ready_since_s,
            pieces=self.pieces,
            piece_s=0.05,
            left_s=0.05 if self.begun else None,
            at_s=self.bus.clock.now_s(),
            budget_bytes=self.device_bytes,
        )
        return report.model_copy(update=changes)

    async def _follow(self) -> None:
        subject = streams.lease_order(self.accelerator, self.name)
        async for delivery in self.bus.streams.follow(streams.LEASES, subject, last_only=True):
            order = delivery.read(LeaseOrder)
            if order.epoch <= self.epoch:
                continue
            self.epoch = order.epoch
            self.orders.append(order)
            if not self.is_deaf:
                await (self._wake(order) if order.wake else self._park(order))

    async def _wake(self, order: LeaseOrder) -> None:
        self.state = ExecutorState.WAKING
        await self.tell()
        from_tier = self.tier
        await self.device.take(self.name)
        if self.failure is not None:
            self.device.free(self.name)
            self.state = ExecutorState.FAULTY
            await self.answer(order.epoch, self.state, from_tier, failure=self.failure, lacks_memory=self.lacks_memory)
            return
        self.state, self.tier = ExecutorState.AWAKE, Tier.DEVICE
        self.served, self.busy_ms, self.score_ms, self.pieces = {}, 0, 0, 0
        await self.answer(order.epoch, self.state, from_tier, move_s=self.move_s)

    async def _park(self, order: LeaseOrder) -> None:
        from_tier, was_awake = self.tier, self.is_awake
        self.state = ExecutorState.PARKING
        await self.tell()
        await asyncio.sleep(self.drain_s)
        self.state = ExecutorState.PARKED
        if order.tier.depth > self.tier.depth:
            self.tier = order.tier
        self.device.free(self.name)
        about = {"served": self.served, "busy_ms": self.busy_ms, "score_ms": self.score_ms, "pieces": self.pieces} if was_awake else {}
        await self.answer(order.epoch, self.state, from_tier, move_s=self.move_s, **about)

    @property
    def is_awake(self) -> bool:
        return self.state is ExecutorState.AWAKE

    async def answer(self, epoch: int, state: ExecutorState, from_tier: Tier, **about: object) -> None:
        await self.send(self.done(epoch, state, from_tier, **about))
        await self.tell()

    def done(self, epoch: int, state: ExecutorState, from_tier: Tier, **about: object) -> LeaseDone:
        """An answer of its own; `about`: further fields, or others than its own."""
        values = {"accelerator": self.accelerator, "executor": self.name, "pool": self.pool, "replica": self.replica, "epoch": epoch}
        values |= {"state": state, "from_tier": from_tier, "tier": self.tier, "at_s": self.bus.clock.now_s()}
        return LeaseDone.model_validate({**values, "device_bytes": self.device_bytes, "host_bytes": MIB, **about})

    async def send(self, done: LeaseDone) -> None:
        subject = streams.lease_done(self.accelerator, self.name)
        self.sent += 1
        if self.losses:
            self.losses -= 1
            return
        await self.bus.publish(Outgoing(subject, done, f"{subject}:{self.replica}:{self.sent}"))

    async def has_work(self, ready: int) -> None:
        """From now on, so many messages wait for it."""
        self.ready = ready
        self.ready_since_s = self.bus.clock.now_s() if ready else None
        await self.tell()

    async def works(self, **served: int) -> None:
        """It has done all that waited: so much for each task."""
        for task, amount in served.items():
            self.served[task] = self.served.get(task, 0) + amount
        self.pieces += max(1, self.ready)
        self.busy_ms += 1
        await self.has_work(0)

    async def wakes(self) -> None:
        await eventually(lambda: self.is_awake)

    async def wakes_for(self, ready: int) -> None:
        """Wait until it is awake, from when on so many messages wait for it."""
        await self.has_work(ready)
        await self.wakes()


@dataclass
class World(Queried):
    """A scheduler that leads accelerator `a`, and its executors by name."""

    bus: Bus
    database: Database
    scheduler: Scheduler
    lead: asyncio.Task[None]
    """The scheduler's runner."""
    device: Device
    executors: dict[str, Executor]
    runners: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    def begin(self, executor: Executor) -> None:
        self.executors[executor.name] = executor
        self.runners[executor.name] = asyncio.create_task(executor.run())

    async def kill(self, name: str) -> None:
        """End an executor's process: the kernel frees its lock."""
        runner = self.runners.pop(name)
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
        self.device.free(name)

    async def with_two_tasks(self, *names: str) -> list[Executor]:
        """Executors, once a task of each pool runs and the leader has read that: it ends slices of pools without tasks."""
        await self.execute(*TWO_TASKS)
        await eventually(lambda: all(self.leader._rows.has_running_tasks(pool) for pool in POOLS))
        return [self.executors[name] for name in names]

    @property
    def leader(self) -> Leader:
        assert self.scheduler._leader is not None
        return self.scheduler._leader

    async def heard(self, executor: Executor, state: ExecutorState) -> None:
        """Wait until the leader's newest report of the executor has that state."""

        def is_heard() -> bool:
            report = self.leader._reports.newest((executor.accelerator, executor.name), self.bus.clock.now_s())
            return report is not None and report.state is state

        await eventually(is_heard)

    async def one_awake(self) -> tuple[Executor, Executor]:
        """The samplers of both pools, each with a task: the first is awake with work, the second has none."""
        one, two = await self.with_two_tasks("rollout-one", "rollout-two")
        await one.wakes_for(1)
        await self.rows_become("SELECT count(*) FROM slices WHERE awake_at IS NOT NULL", [(1,)])
        return one, two


def task_row(task: str, pool: str, tenant: str = "acme") -> tuple[str, str]:
    """Statements that insert a running task with a group that is being sampled and a step that is being trained."""
    return (
        f"INSERT INTO tenants (id) VALUES ('{tenant}') ON CONFLICT DO NOTHING",
        "INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,"
        f" trajectory_tokens, admitted) VALUES ('', '{task}', '{tenant}', '{task}', '{pool}', '{SPEC}', 'running', 0, 9, 2, 2, 0, 9, 0)",
    )


def open_group(task: str) -> str:
    return (
        "INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at)"
        f" VALUES (2, '{task}', 0, 0, 'open', 0, 0, 0, now() + interval '1 day')"
    )


SLICES = "SELECT executor, reason, ended FROM slices ORDER BY epoch"
TWO_TASKS = (*task_row("t1", "one"), open_group("t1"), *task_row("t2", "two", "globex"), open_group("t2"))


async def clean(world: World) -> None:
    """No rule of the doctor about slices is broken."""
    async with world.database.transaction() as tx:
        broken = await examine_database(tx.connection)
    assert [each for each in broken if any(word in each.rule for word in ("slice", "clock", "ledger", "totals"))] == []


async def clock_of(world: World, pool: str) -> PoolClock | None:
    return await world.bus.kv.get(streams.CLOCKS_BUCKET, pool, PoolClock)


@asynccontextmanager
async def a_scheduler(
    bus: Bus, database_url: str, *, pools: Pools = POOLS, accelerators: Accelerators = ACCELERATORS
) -> AsyncGenerator[tuple[Scheduler, Database, asyncio.Task[None]]]:
    database = await Database.connect(database_url)
    scheduler = Scheduler(SchedulerSettings(database_url=database_url, tick_s=60.0), bus, database, pools, accelerators)
    runner = asyncio.create_task(scheduler.run())
    try:
        yield scheduler, database, runner
    finally:
        await ended([runner])
        await database.close()


@asynccontextmanager
async def running_world(
    bus: Bus, database_url: str, *, pools: Pools = POOLS, accelerators: Accelerators = ACCELERATORS
) -> AsyncGenerator[World]:
    """A scheduler with the executors of all pools, which are cold and have no work."""
    async with a_scheduler(bus, database_url, pools=pools, accelerators=accelerators) as (scheduler, database, lead):
        device = Device()
        world = World(bus, database, scheduler, lead, device, {})
        for pool in pools:
            for service in ("rollout", "trainer"):
                world.begin(Executor(bus, device, service, pool))
        try:
            yield world
        finally:
            for name in list(world.runners):
                await world.kill(name)
