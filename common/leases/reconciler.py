"""Carries out the newest order: wakes and parks a Parkable, with lease and locks.

A wake waits for compute.lock and room on the device, then for the lease in NATS; parking releases all three. `Side` says which of the
three an executor has, `Want` says what the newest order requires, and `decide` is the table of next steps. State is checked again after
each step: only the newest order counts, even while an older one waits. A move that has started is finished first.

A new process does not carry out orders older than itself: it reports that it is cold, under the epoch of the last of them.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto

import structlog

from common.accelerators import ExecutorState, NoMemory, StateMismatch, Tier
from common.errors import Fatal, Reject
from common.leases.answers import Answers, Outcome, death_before
from common.leases.context import ExecutorContext
from common.leases.lease import LeaseHolder, Superseded
from common.leases.moves import Moves, NoRoom, Room
from common.messages import LeaseOrder
from common.resilience import crashpoints
from common.resilience.event_loop import is_set_within
from common.streams import LEASES

LOCK_LOOK_S = 0.05
"""Maximum seconds between attempts at compute.lock. A holder that parks deletes its lease, which ends the pause; a holder that dies does
not."""
MOVE_LOOK_S = 0.005
"""Maximum seconds between attempts while no other executor has the lease: others then hold compute.lock only briefly, for a move that makes
room."""
LOOK_S = 0.5
"""Maximum seconds between checks of the lease, whose expiry NATS does not report."""
END_S = 3.0
"""Maximum seconds for a last answer and the release of the lease before this process ends."""

log = structlog.get_logger()


class Side(Enum):
    """An executor's share of the accelerator: lock, room and lease."""

    RESTING = auto()
    """Cold, parked or faulty: neither lock nor lease. Its state may be on the device, paused."""
    WAITING = auto()
    """Waking: waits for compute.lock and room, then for the lease."""
    LEASED = auto()
    """Waking: has lock, room and lease, and has not started the move."""
    LAPSED = auto()
    """As LEASED, but the lease was not confirmed in time, or another process has it."""
    AWAKE = auto()
    OVERDUE = auto()
    """Awake, with a lapsed lease."""


class Want(Enum):
    """Requirement of the newest order."""

    NOTHING = auto()
    """The order is settled, or arrived while the executor wakes for an older one."""
    WAKE = auto()
    PARK = auto()
    MOVE = auto()
    """Park in a deeper tier than the current one."""


class Do(Enum):
    """The next step."""

    WAIT = auto()
    BEGIN = auto()
    """Start to wait for the requirements of a wake."""
    CLAIM = auto()
    """Try to get the missing ones of compute.lock, room, and a lease with the order's epoch."""
    WAKE = auto()
    PARK = auto()
    PARK_LOCKED = auto()
    """Park once compute.lock is free, however long another executor computes."""
    GIVE_UP = auto()
    """Release lock, room and lease: the order was replaced, or the lease was lost."""
    FENCE = auto()
    """Park itself, without an order."""


def decide(side: Side, want: Want) -> Do:
    match side, want:
        case Side.RESTING | Side.AWAKE, Want.NOTHING:
            return Do.WAIT
        case Side.RESTING, Want.WAKE:
            return Do.BEGIN
        case Side.WAITING | Side.AWAKE, Want.WAKE:
            return Do.CLAIM
        case Side.LEASED, Want.WAKE:
            return Do.WAKE
        case Side.RESTING, Want.MOVE:
            return Do.PARK_LOCKED
        case Side.RESTING | Side.AWAKE, Want.PARK | Want.MOVE:
            return Do.PARK
        case Side.WAITING | Side.LEASED | Side.LAPSED, _:
            return Do.GIVE_UP
        case Side.OVERDUE, _:
            return Do.FENCE


class LeaseReconciler:
    def __init__(self, context: ExecutorContext, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `state` or `epoch` has changed."""
        self._context = context
        self._changed = changed
        self._stirred = asyncio.Event()
        self._lease = LeaseHolder(context, self._stirred.set)
        self._answers = Answers(context)
        self._room, self._moves = Room(context), Moves(context)
        self._newest: LeaseOrder | None = None
        self._waking_for: LeaseOrder | None = None
        self._settled = Outcome(0, ExecutorState.COLD, Tier.OFF)
        """Outcome of the newest order that is done, or was given up; orders up to its epoch have no effect."""
        self.state = ExecutorState.COLD
        self.epoch = 0
        """Epoch of the newest order that was read; 0 before the first."""

    async def run(self) -> None:
        """Run until cancelled. Raises: Fatal if the device, or the folder of locks, becomes unusable."""
        await self._begin()
        try:
            async with asyncio.TaskGroup() as runners:
                for runner in (self._read_orders, self._lease.watch, self._lease.keep, self._keep_time, self._answers.run, self._obey):
                    runners.create_task(runner())
        finally:  # the kernel frees the locks when this process has died, and not before: it may still compute
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await asyncio.shield(self._lease.release())

    # ------------------------------------------------------------------------------------------------------ reading orders

    async def _begin(self) -> None:
        bus, me = self._context.bus, self._context.me
        last = await bus.retry_until_ready(lambda: bus.streams.last(LEASES, me.orders))
        with suppress(Reject):
            if last is not None:
                self.epoch = last.read(LeaseOrder).epoch
        self._settle(Outcome(self.epoch, ExecutorState.COLD, self._context.executable.tier, failure=await death_before(self._context)))

    async def _read_orders(self) -> None:
        async for delivery in self._context.bus.streams.follow(LEASES, self._context.me.orders, last_only=True):
            try:
                order = delivery.read(LeaseOrder)
            except Reject as error:
                log.warning("order_unreadable", subject=delivery.subject, reason=str(error))
                continue
            if order.epoch > self.epoch:
                log.info("lease_order", epoch=order.epoch, wake=order.wake, tier=str(order.tier))
                self._newest, self.epoch = order, order.epoch
                self._stirred.set()
                self._changed()

    async def _keep_time(self) -> None:
        """Check whether the lease is overdue, and report to the watchdog that the event loop runs, until cancelled."""
        context, pause_s = self._context, self._context.renew_s / 12
        try:
            while True:
                context.watchdog.turned()
                if not context.bus.is_connected:  # a step's version may wait for NATS, and no other executor can be ordered meanwhile
                    context.watchdog.postpone(pause_s)
                if self._lease.is_overdue():
                    context.executable.end_drain()  # requests that a park waits for would run without a lease
                    self._stirred.set()
                await asyncio.sleep(pause_s)
        finally:
            context.watchdog.released()

    def _side(self) -> Side:
        if self.state is ExecutorState.AWAKE:
            return Side.OVERDUE if self._lease.is_overdue() else Side.AWAKE
        if self._waking_for is None:
            return Side.RESTING
        if self._lease.epoch is not None:
            return Side.LAPSED if self._lease.is_overdue() else Side.LEASED
        return Side.WAITING

    def _want(self, order: LeaseOrder) -> Want:
        if order.epoch <= self._settled.epoch or self._waking_for not in (None, order):
            return Want.NOTHING
        if order.wake:
            return Want.WAKE
        return Want.MOVE if order.tier.depth > self._context.executable.tier.depth else Want.PARK

    # ---------------------------------------------------------------------------------------------------- carrying out orders

    async def _obey(self) -> None:
        while True:
            self._stirred.clear()
            pause_s = None if self._newest is None else await self._step(self._newest)
            await is_set_within(self._stirred, pause_s)

    async def _step(self, order: LeaseOrder) -> float | None:
        """Take one step; returns maximum seconds until the next check, which a change brings forward. None: only a change causes one."""
        match decide(self._side(), self._want(order)):
            case Do.WAIT:
                return None
            case Do.BEGIN:
                self._waking_for, self._room.free_since_s = order, None
                self._set(ExecutorState.WAKING)
            case Do.CLAIM:
                return await self._claim(order)
            case Do.WAKE:
                await self._wake(order)
            case Do.PARK:
                await self._park(order.epoch, order.tier, order.drain_s)
            case Do.PARK_LOCKED:
                if not self._context.locks.take_compute():
                    return self._lock_look_s
                await self._park(order.epoch, order.tier, order.drain_s)
            case Do.GIVE_UP:
                await self._give_back()
                self._waking_for = None
                self._set(self._settled.state)
            case Do.FENCE:
                await self._fence()
        return 0.0

    @property
    def _lock_look_s(self) -> float:
        return LOCK_LOOK_S if self._lease.is_elsewhere else MOVE_LOOK_S

    async def _claim(self, order: LeaseOrder) -> float:
        """Try to get lock, room and lease; returns seconds until the next check. An executor that is awake only updates its lease's epoch,
        and continues."""
        is_awake = self.state is ExecutorState.AWAKE
        try:
            if not is_awake and not await self._room.take():
                return self._lock_look_s
            if not await self._lease.take(order.epoch):
                return LOOK_S
        except NoRoom as lack:
            await self._fail(order, str(lack), self._context.executable.tier, lacks_memory=True)
        except Superseded as superseded:
            log.warning("order_outdated", epoch=order.epoch, reason=str(superseded))
            if is_awake:
                await self._fence()
            else:
                await self._give_back()
                failure = f"order {order.epoch} is outdated: {superseded}"
                self._settle(Outcome(order.epoch, self._settled.state, self._context.executable.tier, failure=failure))
        else:
            if is_awake:
                self._settle(Outcome(order.epoch, ExecutorState.AWAKE, Tier.DEVICE))
        return 0.0

    async def _wake(self, order: LeaseOrder) -> None:
        from_tier = self._context.executable.tier
        try:
            move_s = await self._moves.wake()
        except NoMemory as error:
            await self._fail(order, str(error), from_tier, lacks_memory=True)
        except StateMismatch as error:
            await self._moves.close()
            await self._fail(order, str(error), from_tier, lacks_memory=False)
        except Fatal as error:  # this process ends, and its death frees the locks
            self._settle(Outcome(order.epoch, ExecutorState.FAULTY, from_tier, failure=str(error), lacks_memory=False))
            await self._answers.flush(END_S)
            raise
        else:
            if (excess := self._room.enter()) is not None:  # the estimate was too low
                await self._moves.close()
                await self._fail(order, excess, from_tier, lacks_memory=True)
                return
            crashpoints.reached("lease_after_wake")
            self._room.lacked_memory = False
            self._settle(Outcome(order.epoch, ExecutorState.AWAKE, from_tier, move_s=move_s))

    async def _fail(self, order: LeaseOrder, failure: str, from_tier: Tier, *, lacks_memory: bool) -> None:
        log.error("wake_failed", epoch=order.epoch, reason=failure)
        self._room.lacked_memory = lacks_memory
        await self._give_back()
        self._settle(Outcome(order.epoch, ExecutorState.FAULTY, from_tier, failure=failure, lacks_memory=lacks_memory))

    async def _park(self, epoch: int, tier: Tier, drain_s: float | None, failure: str | None = None) -> None:
        from_tier, was_awake, move_s, freed = self._context.executable.tier, self.state is ExecutorState.AWAKE, None, None
        if was_awake or tier.depth > from_tier.depth:
            self._set(ExecutorState.PARKING)
            move_s, freed = await self._moves.park(tier, drain_s, ends_slice=was_awake)
        await self._give_back()
        if move_s is not None:
            crashpoints.reached("lease_after_park")
        self._settle(Outcome(epoch, ExecutorState.PARKED, from_tier, move_s, freed, failure, reports_work=was_awake))

    async def _fence(self) -> None:
        epoch = self._lease.epoch or self._settled.epoch
        log.warning("parks_itself", epoch=epoch, reason="its lease is not confirmed")
        failure = "it has parked itself: its lease was not confirmed in time, or another process has it"
        await self._park(max(epoch, self._settled.epoch), self._context.fence_tier, 0.0, failure)

    async def _give_back(self) -> None:
        self._room.give_back()
        await self._lease.release()

    def _settle(self, outcome: Outcome) -> None:
        """Record that the order is done, or given up."""
        self._settled, self._waking_for = outcome, None
        self._set(outcome.state)
        self._answers.add(outcome)

    def _set(self, state: ExecutorState) -> None:
        self.state = state
        self._changed()
