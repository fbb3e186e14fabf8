"""Does what the newest order says: wakes and parks a Parkable, with lease and locks.

A wake waits for room on the device, takes compute.lock, enters its bytes where there still is room, and takes the lease in NATS. Parking
gives all of that back. State of a parked executor, too, moves under compute.lock: the executor takes it for the move, once the holder has
parked. So one that waits for room never keeps the lock from those that must make room.

Only the newest order counts, also while an older one waits for any of them; what a Parkable has begun it finishes first. A holder whose
lease is overdue parks itself, and one that parks already waits for no request any more.

A new process computes nothing for orders that are older than itself: it says that it is cold, under the epoch of the last of them.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from common.accelerators import ExecutorState, NoMemory, StateMismatch, Tier
from common.errors import Fatal, Reject
from common.leases.answers import Answers, Outcome, death_before
from common.leases.context import ExecutorContext
from common.leases.lease import LeaseHolder, Superseded
from common.leases.memory import private_bytes
from common.messages import LeaseOrder
from common.resilience import crashpoints
from common.streams import LEASES

LOCK_LOOK_S = 0.05
"""Maximum pause between attempts at compute.lock. A holder that parks deletes its lease, which ends the pause; one that dies does not."""
MOVE_LOOK_S = 0.005
"""The same while no other executor has the lease: others move then, for a moment each, and make room."""
OTHERS_FIRST_S = 0.25
"""Time without others' moves before a wake that had no memory at the last attempt: they are ordered a tier deeper for it."""
LOOK_S = 0.5
"""Maximum pause between looks at the lease, whose expiry NATS does not tell."""
DRAIN_FACTOR = 10.0
"""An operation that an order to park waits for counts as hung after so many times its usual duration,"""
DRAIN_LIMIT_S = 600.0
"""and after this where none has ended yet, in this process or an earlier one."""
END_S = 3.0
"""Maximum time for a last answer and the release of the lease before this process ends."""

log = structlog.get_logger()


class _NoRoom(Exception):
    """No executor computes or moves, and there is no room on the device."""


class LeaseReconciler:
    def __init__(self, means: ExecutorContext, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `state` or `epoch` have changed."""
        self._means = means
        self._changed = changed
        self._stirred = asyncio.Event()
        self._lease = LeaseHolder(means, self._stirred.set)
        self._answers = Answers(means)
        self._newest: LeaseOrder | None = None
        self._settled = 0
        """Epoch of the newest order that is done, or was given up; orders up to it do nothing."""
        self._rest = ExecutorState.COLD
        """State to which it returns when an order to wake is overtaken."""
        self._lacked_memory = False
        """Whether its last wake failed for that."""
        self._free_since_s: float | None = None
        """Since when a wake finds compute.lock free at each look; None where another had it at the last."""
        self.state = ExecutorState.COLD
        self.epoch = 0
        """Of the newest order that was read; 0 before the first."""

    async def run(self) -> None:
        """Until cancelled. Raises: Fatal when the device, or the folder of locks, cannot be used any more."""
        await self._begin()
        try:
            async with asyncio.TaskGroup() as runners:
                for runner in (self._read_orders, self._lease.watch, self._lease.keep, self._keep_time, self._answers.run, self._obey):
                    runners.create_task(runner())
        finally:  # the locks are freed when this process has died, and not before: it may still compute
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await asyncio.shield(self._lease.release())

    # ---------------------------------------------------------------------------------------------------------- orders

    async def _begin(self) -> None:
        bus, me = self._means.bus, self._means.me
        last = await bus.retry_until_ready(lambda: bus.streams.last(LEASES, me.orders))
        with suppress(Reject):
            if last is not None:
                self.epoch = self._settled = last.read(LeaseOrder).epoch
        self._answers.add(Outcome(self._settled, ExecutorState.COLD, self._means.executable.tier, failure=await death_before(self._means)))

    async def _read_orders(self) -> None:
        async for delivery in self._means.bus.streams.follow(LEASES, self._means.me.orders, last_only=True):
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

    async def _obey(self) -> None:
        while True:
            self._stirred.clear()
            if self.state is ExecutorState.AWAKE and self._lease.is_overdue():
                await self._fence()
            elif (order := self._newest) is not None and order.epoch > self._settled:
                await (self._wake(order) if order.wake else self._park_for(order))
            else:
                await self._stirred.wait()

    async def _keep_time(self) -> None:
        """Look at the lease's age, and show the watchdog that the event loop turns, until cancelled."""
        means, pause_s = self._means, self._means.renew_s / 12
        try:
            while True:
                means.watchdog.turned()
                if not means.bus.is_connected:  # a step's version may wait for NATS, and no other executor can be ordered meanwhile
                    means.watchdog.postpone(pause_s)
                if self._lease.is_overdue():
                    means.executable.end_drain()  # requests that a park waits for would be computed without a lease
                    self._stirred.set()
                await asyncio.sleep(pause_s)
        finally:
            means.watchdog.released()

    def _is_overtaken(self, order: LeaseOrder) -> bool:
        return self._newest is not order

    async def _pause_for_lock(self) -> None:
        await self._pause(LOCK_LOOK_S if self._lease.is_elsewhere else MOVE_LOOK_S)

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or for an order or a change of the lease."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stirred.wait()
        self._stirred.clear()

    # ------------------------------------------------------------------------------------------------------------ wake

    async def _wake(self, order: LeaseOrder) -> None:
        if self.state is not ExecutorState.AWAKE:
            self._set(ExecutorState.WAKING)
        self._free_since_s = None
        try:
            is_permitted = await self._may_compute(order)
        except _NoRoom as lack:
            await self._fail(order, str(lack), self._means.executable.tier, lacks_memory=True)
            return
        except Superseded as superseded:
            log.warning("order_outdated", epoch=order.epoch, reason=str(superseded))
            if self.state is ExecutorState.AWAKE:
                await self._fence()
            else:
                await self._let_go()
                failure = f"order {order.epoch} is outdated: {superseded}"
                self._settle(Outcome(order.epoch, self._rest, self._means.executable.tier, failure=failure))
            return
        if self.state is ExecutorState.AWAKE:  # it holds the accelerator already
            if is_permitted:
                self._settle(Outcome(order.epoch, ExecutorState.AWAKE, Tier.DEVICE))
        elif is_permitted and not self._is_overtaken(order) and not self._lease.is_overdue():
            await self._move_to_device(order)
        else:
            await self._let_go()
            self._set(self._rest)

    async def _may_compute(self, order: LeaseOrder) -> bool:
        """Wait for the device, then the lease; False when a newer order came, or a holder must park itself first.

        Raises: Superseded, _NoRoom.
        """
        while not self._is_overtaken(order):
            if self._lease.is_overdue():
                if self.state is ExecutorState.AWAKE:
                    return False
                await self._lease.release()
            if self.state is not ExecutorState.AWAKE and not await self._take_device():
                await self._pause_for_lock()
            elif self._lease.epoch == order.epoch or await self._lease.take(order.epoch):
                return True
            else:
                await self._pause(LOOK_S)
        return False

    async def _take_device(self) -> bool:
        """Whether this executor has compute.lock now, and room for its bytes, which are entered. Without room it keeps no lock.

        Raises: _NoRoom where there was none for `memory_wait_s`, and no executor computed or moved.
        """
        means, locks = self._means, self._means.locks
        shortage = None if locks.computes else locks.shortage(means.executable.device_bytes, means.budget_bytes)
        if not locks.take_compute():
            self._free_since_s = None
            return False
        now_s = time.monotonic()
        self._free_since_s = now_s if self._free_since_s is None else self._free_since_s
        is_its_turn = not self._lacked_memory or now_s >= self._free_since_s + OTHERS_FIRST_S
        if shortage is None and is_its_turn and (shortage := await self._reserve()) is None:
            return True
        self._free_device()
        if shortage is not None and now_s > self._free_since_s + means.memory_wait_s:
            raise _NoRoom(shortage)
        return False

    async def _reserve(self) -> str | None:
        """Enter its bytes; why no room beside others' entries, or by the driver. Asking that starts a program: under the lock."""
        means, need = self._means, self._means.executable.device_bytes
        if (shortage := means.locks.reserve(need, means.budget_bytes)) is not None:
            return shortage
        if means.executable.tier is not Tier.DEVICE and (free := await means.free_bytes()) is not None and free < need:
            return f"{need} bytes are needed on the device, and its driver says that {free} are free"
        return None

    async def _move_to_device(self, order: LeaseOrder) -> None:
        means, from_tier = self._means, self._means.executable.tier
        crashpoints.reached("lease_before_wake")
        means.tally.begin()
        try:
            move_s = await self._move("wake", Tier.DEVICE, means.executable.wake())
        except NoMemory as error:
            await self._fail(order, str(error), from_tier, lacks_memory=True)
            return
        except StateMismatch as error:
            await self._close()
            await self._fail(order, str(error), from_tier, lacks_memory=False)
            return
        except Fatal as error:  # this process ends, and its death frees the locks
            self._settle(Outcome(order.epoch, ExecutorState.FAULTY, from_tier, failure=str(error), lacks_memory=False))
            await self._answers.flush(END_S)
            raise
        if (excess := means.locks.reserve(means.executable.device_bytes, means.budget_bytes)) is not None:  # the estimate was too low
            await self._close()
            await self._fail(order, excess, from_tier, lacks_memory=True)
            return
        crashpoints.reached("lease_after_wake")
        self._lacked_memory = False
        self._settle(Outcome(order.epoch, ExecutorState.AWAKE, from_tier, move_s=move_s))

    async def _close(self) -> None:
        """Drop a state that may not be used; the next wake makes another."""
        await self._move("park", Tier.NONE, self._means.executable.park(Tier.NONE, 0.0))

    async def _fail(self, order: LeaseOrder, failure: str, from_tier: Tier, *, lacks_memory: bool) -> None:
        log.error("wake_failed", epoch=order.epoch, reason=failure)
        self._lacked_memory = lacks_memory
        await self._let_go()
        self._settle(Outcome(order.epoch, ExecutorState.FAULTY, from_tier, failure=failure, lacks_memory=lacks_memory))

    # ------------------------------------------------------------------------------------------------------------ park

    async def _park_for(self, order: LeaseOrder) -> None:
        """As ordered. What is parked already waits for compute.lock, however long another computes, unless a newer order comes."""
        moves_parked = self.state is not ExecutorState.AWAKE and order.tier.depth > self._means.executable.tier.depth
        while moves_parked and not self._means.locks.take_compute():
            await self._pause_for_lock()
            if self._is_overtaken(order):
                return
        await self._park(order.epoch, order.tier, order.drain_s)

    async def _park(self, epoch: int, tier: Tier, drain_s: float | None, failure: str | None = None) -> None:
        means, from_tier = self._means, self._means.executable.tier
        was_awake, before, move_s, freed = self.state is ExecutorState.AWAKE, None, None, None
        if was_awake or tier.depth > from_tier.depth:
            self._set(ExecutorState.PARKING)
            crashpoints.reached("lease_before_park")
            before = await self._private_bytes(tier)
            move_s = await self._move("park", tier, means.executable.park(tier, drain_s), self._drain_limit_s(drain_s))
            means.tally.look()
            if was_awake and means.tally.pieces and means.tally.piece_s is not None:
                means.history.add_operation(means.tally.piece_s)
            after = await self._private_bytes(tier)
            freed = before - after if before is not None and after is not None else None
        await self._let_go()
        if move_s is not None:
            crashpoints.reached("lease_after_park")
        self._settle(Outcome(epoch, ExecutorState.PARKED, from_tier, move_s, freed, failure, reports_work=was_awake))

    async def _fence(self) -> None:
        epoch = self._lease.epoch or self._settled
        log.warning("parks_itself", epoch=epoch, reason="its lease is not confirmed")
        failure = "it has parked itself: its lease was not confirmed in time, or another process has it"
        await self._park(max(epoch, self._settled), self._means.fence_tier, 0.0, failure)

    # ----------------------------------------------------------------------------------------------------------- moves

    def _drain_limit_s(self, drain_s: float | None) -> float:
        """Maximum time that operations in progress may take to end. An order's `drain_s` bounds those alone that can be frozen."""
        load, tally = self._means.executable.load, self._means.tally
        if not load.begun and not load.preparing:
            return 0.0
        can_be_frozen = not load.preparing and (load.running is None or load.running.is_interruptible)
        if drain_s is not None and can_be_frozen:
            return drain_s
        usual_s = max(load.left_s or 0.0, tally.piece_s or self._means.history.operation_s or 0.0)
        return DRAIN_FACTOR * usual_s if usual_s else DRAIN_LIMIT_S

    async def _move(self, name: str, tier: Tier, move: Coroutine[Any, Any, float | None], allowed_s: float = 0.0) -> float:
        """Seconds of the move. `allowed_s`: what it may wait for before."""
        means, from_tier = self._means, self._means.executable.tier
        limit_s = means.history.limit_s(from_tier, tier) + allowed_s
        began_s = time.monotonic()
        moving = asyncio.ensure_future(move)
        try:
            with means.watchdog.watching(f"{name} from tier {from_tier} to {tier}", limit_s):
                await asyncio.sleep(0)  # it has begun
                crashpoints.reached(f"lease_in_{name}")
                alone_s = await moving
        finally:
            moving.cancel()
        seconds = time.monotonic() - began_s if alone_s is None else alone_s
        means.history.add(from_tier, means.executable.tier, seconds)
        return seconds

    async def _private_bytes(self, tier: Tier) -> int | None:
        """None for a move to the device, which frees nothing. To be read while it may compute: it takes the processor for a moment."""
        return None if tier is Tier.DEVICE else await asyncio.to_thread(private_bytes)

    async def _let_go(self) -> None:
        """Give back what is not needed in this state: the entry unless its state is on the device, compute.lock, and the lease."""
        self._free_device()
        await self._lease.release()

    def _free_device(self) -> None:
        if self._means.executable.tier is not Tier.DEVICE:
            self._means.locks.release_memory()
        self._means.locks.release_compute()

    def _set(self, state: ExecutorState) -> None:
        self.state = state
        self._changed()

    def _settle(self, outcome: Outcome) -> None:
        """The order is done, or given up."""
        self._settled = max(self._settled, outcome.epoch)
        if outcome.state is not ExecutorState.AWAKE:
            self._rest = outcome.state
        self._set(outcome.state)
        self._answers.add(outcome)
