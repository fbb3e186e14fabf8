"""Moves an executor's state between tiers: finds room for it on the device, and ends this process if a move hangs.

State moves only under compute.lock; a parked executor takes the lock for the move. An executor that waits for room never holds the lock,
because the executors that must make room need it.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from common.accelerators import Tier
from common.accelerators.memory import private_bytes
from common.leases.context import ExecutorContext
from common.resilience import crashpoints

OTHERS_FIRST_S = 0.25
"""Seconds without other executors' moves before a wake that lacked memory is retried: they are ordered into deeper tiers to make room."""
DRAIN_FACTOR = 10.0
"""Multiple of an operation's usual duration after which it counts as hung, while a park waits for it."""
DRAIN_LIMIT_S = 600.0
"""Seconds after which an operation counts as hung, while a park waits for it, if no operation has ended yet: neither in this process nor in
an earlier one."""


class NoRoom(Exception):
    """No executor computes or moves, and there is no room on the device."""


class Room:
    """compute.lock, and this executor's bytes on the device: before a move it has both or neither."""

    def __init__(self, context: ExecutorContext) -> None:
        self._context = context
        self.lacked_memory = False
        """Whether the last wake failed for lack of memory."""
        self.free_since_s: float | None = None
        """Start of the current run of checks that found compute.lock free; None if the last check found it held."""

    async def take(self) -> bool:
        """Try to take compute.lock and to enter this executor's bytes; returns whether it has both. Without room it releases the lock.

        Raises: NoRoom if there was no room for `memory_wait_s` seconds, in which no executor computed or moved.
        """
        context, locks = self._context, self._context.locks
        shortage = None if locks.computes else locks.shortage(context.executable.device_bytes, context.budget_bytes)
        if not locks.take_compute():
            self.free_since_s = None
            return False
        now_s = context.clock()
        self.free_since_s = now_s if self.free_since_s is None else self.free_since_s
        is_its_turn = not self.lacked_memory or now_s >= self.free_since_s + OTHERS_FIRST_S
        if shortage is None and is_its_turn and (shortage := await self._enter_before_wake()) is None:
            return True
        self.give_back()
        if shortage is not None and now_s > self.free_since_s + context.memory_wait_s:
            raise NoRoom(shortage)
        return False

    def enter(self) -> str | None:
        """Enter the bytes that the executor needs now. Returns None, or the reason if they do not fit beside others' entries."""
        return self._context.locks.reserve(self._context.executable.device_bytes, self._context.budget_bytes)

    async def _enter_before_wake(self) -> str | None:
        """As `enter`, but also check the driver's free memory. Called only with compute.lock, because the query starts a program."""
        context, need = self._context, self._context.executable.device_bytes
        if (shortage := self.enter()) is not None:
            return shortage
        if context.executable.tier is not Tier.DEVICE and (free := await context.free_bytes()) is not None and free < need:
            return f"{need} bytes are needed on the device, and its driver says that {free} are free"
        return None

    def give_back(self) -> None:
        """Release compute.lock, and the memory entry unless its state is on the device."""
        if self._context.executable.tier is not Tier.DEVICE:
            self._context.locks.release_memory()
        self._context.locks.release_compute()


class Moves:
    """Wakes and parks a Parkable, each within a time limit based on past moves."""

    def __init__(self, context: ExecutorContext) -> None:
        self._context = context

    async def wake(self) -> float:
        """Wake; returns seconds of the move. Raises: as `Parkable.wake`."""
        crashpoints.reached("lease_before_wake")
        self._context.tally.begin()
        return await self._move("wake", Tier.DEVICE, self._context.executable.wake())

    async def close(self) -> None:
        """Drop the executor's state, which must not be used; the next wake makes a new one."""
        await self._move("park", Tier.NONE, self._context.executable.park(Tier.NONE, 0.0))

    async def park(self, tier: Tier, drain_s: float | None, *, ends_slice: bool) -> tuple[float, int | None]:
        """Park; returns seconds of the move, and bytes of private memory that it freed. The bytes are None if unknown, and for the tier
        `device`, which frees none. `ends_slice`: whether the executor was awake.
        """
        context = self._context
        crashpoints.reached("lease_before_park")
        before = await self._private_bytes(tier)
        move_s = await self._move("park", tier, context.executable.park(tier, drain_s), self.drain_limit_s(drain_s))
        context.tally.look()
        if ends_slice and context.tally.pieces and context.tally.piece_s is not None:
            context.history.add_operation(context.tally.piece_s)
        after = await self._private_bytes(tier)
        return move_s, before - after if before is not None and after is not None else None

    def drain_limit_s(self, drain_s: float | None) -> float:
        """Maximum seconds for operations in progress to end. An order's `drain_s` only limits operations that can be frozen."""
        load, tally = self._context.executable.load, self._context.tally
        if not load.begun and not load.preparing:
            return 0.0
        can_be_frozen = not load.preparing and (load.running is None or load.running.is_interruptible)
        if drain_s is not None and can_be_frozen:
            return drain_s
        usual_s = max(load.left_s or 0.0, tally.piece_s or self._context.history.operation_s or 0.0)
        return DRAIN_FACTOR * usual_s if usual_s else DRAIN_LIMIT_S

    async def _move(self, name: str, tier: Tier, move: Coroutine[Any, Any, float | None], allowed_s: float = 0.0) -> float:
        """Run a move within its time limit; returns its seconds. `allowed_s`: additional seconds for waits before the move."""
        context, from_tier = self._context, self._context.executable.tier
        limit_s = context.history.limit_s(from_tier, tier) + allowed_s
        began_s = time.monotonic()
        moving = asyncio.ensure_future(move)
        try:
            with context.watchdog.watching(f"{name} from tier {from_tier} to {tier}", limit_s):
                await asyncio.sleep(0)  # lets the move start
                crashpoints.reached(f"lease_in_{name}")
                alone_s = await moving
        finally:
            moving.cancel()
        seconds = time.monotonic() - began_s if alone_s is None else alone_s
        context.history.add(from_tier, context.executable.tier, seconds)
        return seconds

    async def _private_bytes(self, tier: Tier) -> int | None:
        """Private bytes; None for a move to the device. Called while the executor still holds compute.lock, because reading them takes
        processor time."""
        return None if tier is Tier.DEVICE else await asyncio.to_thread(private_bytes)
