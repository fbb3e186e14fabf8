"""An executor's state between tiers: room for it on the device, and moves that end in time or end this process.

State moves under compute.lock alone, also that of a parked executor, which takes the lock for the move. One that waits for room never keeps
the lock from those that must make room.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from common.accelerators import Tier
from common.leases.context import ExecutorContext
from common.leases.memory import private_bytes
from common.resilience import crashpoints

OTHERS_FIRST_S = 0.25
"""Time without others' moves before a wake that had no memory at the last attempt: they are ordered a tier deeper for it."""
DRAIN_FACTOR = 10.0
"""An operation that an order to park waits for counts as hung after so many times its usual duration,"""
DRAIN_LIMIT_S = 600.0
"""and after this where none has ended yet, in this process or an earlier one."""


class NoRoom(Exception):
    """No executor computes or moves, and there is no room on the device."""


class Room:
    """compute.lock, and this executor's bytes on the device: both or none of them, until it moves."""

    def __init__(self, means: ExecutorContext) -> None:
        self._means = means
        self.lacked_memory = False
        """Whether the last wake failed for that."""
        self.free_since_s: float | None = None
        """Since when a wake finds compute.lock free at each look; None where another had it at the last."""

    async def take(self) -> bool:
        """Whether this executor has compute.lock now, and its bytes are entered. Without room it keeps no lock.

        Raises: NoRoom where there was none for `memory_wait_s`, and no executor computed or moved.
        """
        means, locks = self._means, self._means.locks
        shortage = None if locks.computes else locks.shortage(means.executable.device_bytes, means.budget_bytes)
        if not locks.take_compute():
            self.free_since_s = None
            return False
        now_s = time.monotonic()
        self.free_since_s = now_s if self.free_since_s is None else self.free_since_s
        is_its_turn = not self.lacked_memory or now_s >= self.free_since_s + OTHERS_FIRST_S
        if shortage is None and is_its_turn and (shortage := await self._enter_before_wake()) is None:
            return True
        self.give_back()
        if shortage is not None and now_s > self.free_since_s + means.memory_wait_s:
            raise NoRoom(shortage)
        return False

    def enter(self) -> str | None:
        """Enter the bytes that it needs now; why there is no room beside others' entries."""
        return self._means.locks.reserve(self._means.executable.device_bytes, self._means.budget_bytes)

    async def _enter_before_wake(self) -> str | None:
        """As `enter`; also why there is none by the driver. Asking that starts a program: under the lock."""
        means, need = self._means, self._means.executable.device_bytes
        if (shortage := self.enter()) is not None:
            return shortage
        if means.executable.tier is not Tier.DEVICE and (free := await means.free_bytes()) is not None and free < need:
            return f"{need} bytes are needed on the device, and its driver says that {free} are free"
        return None

    def give_back(self) -> None:
        """Compute.lock, and the entry unless its state is on the device."""
        if self._means.executable.tier is not Tier.DEVICE:
            self._means.locks.release_memory()
        self._means.locks.release_compute()


class Moves:
    """Wakes and parks a Parkable, each within the time that past moves allow."""

    def __init__(self, means: ExecutorContext) -> None:
        self._means = means

    async def wake(self) -> float:
        """Seconds of the move. Raises: as `Parkable.wake`."""
        crashpoints.reached("lease_before_wake")
        self._means.tally.begin()
        return await self._move("wake", Tier.DEVICE, self._means.executable.wake())

    async def close(self) -> None:
        """Drop a state that may not be used; the next wake makes another."""
        await self._move("park", Tier.NONE, self._means.executable.park(Tier.NONE, 0.0))

    async def park(self, tier: Tier, drain_s: float | None, *, ends_slice: bool) -> tuple[float, int | None]:
        """Seconds of the move, and private memory that it freed; None for a move to the device, which frees none.

        `ends_slice`: whether it was awake.
        """
        means = self._means
        crashpoints.reached("lease_before_park")
        before = await self._private_bytes(tier)
        move_s = await self._move("park", tier, means.executable.park(tier, drain_s), self.drain_limit_s(drain_s))
        means.tally.look()
        if ends_slice and means.tally.pieces and means.tally.piece_s is not None:
            means.history.add_operation(means.tally.piece_s)
        after = await self._private_bytes(tier)
        return move_s, before - after if before is not None and after is not None else None

    def drain_limit_s(self, drain_s: float | None) -> float:
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
        """To be read while it may compute: it takes the processor for a moment."""
        return None if tier is Tier.DEVICE else await asyncio.to_thread(private_bytes)
