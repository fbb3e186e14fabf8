"""The sampler as an executor of a shared accelerator: it takes messages while its engine is awake, and none while it is parked."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from common.accelerators import Function, Load, Tier, WorkDone
from common.bus import Slots
from rollout_svc.accelerators.tiers import Parking
from rollout_svc.adapters import Adapters
from rollout_svc.engine.engine import Engine
from rollout_svc.service import MAX_COALESCING_S, Rollout
from rollout_svc.serving.service import Serving

SETTLED_WITHIN_S = 2 * MAX_COALESCING_S
"""Maximum time for which a park waits until prompts are tokenized, and turns that have ended are published."""


class Sampler:
    """`common.accelerators.Parkable`. Its operations are requests to the engine: turns of members, and served requests."""

    def __init__(
        self,
        engine: Engine,
        adapters: Adapters,
        rollout: Rollout,
        slots: Sequence[Slots],
        serving: Serving | None = None,
        gpu_bytes: int | None = None,
    ) -> None:
        """`engine` may be closed, until the first wake. `slots`: those of all consumers whose messages reach the engine. `gpu_bytes`: as of
        Parking."""
        self._engine = engine
        self._adapters = adapters
        self._rollout = rollout
        self._slots = slots
        self._serving = serving
        self._parking = Parking(engine, gpu_bytes)
        self._draining: asyncio.Timeout | None = None
        if not engine.gate.is_open:
            self._close_intake()

    @property
    def tier(self) -> Tier:
        return self._parking.tier

    @property
    def device_bytes(self) -> int:
        return self._parking.device_bytes

    @property
    def host_bytes(self) -> int:
        return self._parking.host_bytes

    @property
    def load(self) -> Load:
        """Requests on their way to the engine have begun, too: a holder that is left for want of work would give their messages back, and
        a parked sampler keeps those that wait at the gate, so that nothing else says that it should wake."""
        work, gate = self._engine.work, self._engine.gate
        outside = gate.waiting + len(self._rollout.preparing) + (self._serving.preparing if self._serving else 0)
        begun = work.inside + outside
        return Load(Function.GENERATE if gate.is_open and begun else None, begun, work.left_s())

    async def wake(self) -> None:
        """As `Parking.wake`. Adapters that were fetched meanwhile are loaded after it."""
        await self._adapters.stop()
        await self._parking.wake(self._adapters.recheck)
        self._adapters.go()
        for slots in self._slots:
            slots.open()

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        """What has begun may end for `drain_s` (None: however long it takes); then it is frozen, and ends after a wake, or is handed back
        (`Parking.park`). Served requests that wait for an adapter are not waited for. Seconds of the move."""
        self._close_intake()
        self._rollout.hand_back()
        if self._engine.gate.is_open:  # what is frozen ends after a wake alone
            await self._drain(drain_s)
        await self._adapters.stop()
        began_s = time.monotonic()
        await self._parking.park(tier)
        moved_s = time.monotonic() - began_s
        with suppress(TimeoutError):  # prompts and answers would be made beside the next holder
            async with asyncio.timeout(SETTLED_WITHIN_S):
                await self._rollout.preparing.none()
                await self._rollout.unanswered.none()
        return moved_s

    def end_drain(self) -> None:
        if self._draining is not None and not self._draining.expired():
            self._draining.reschedule(asyncio.get_running_loop().time())

    async def _drain(self, drain_s: float | None) -> None:
        """Wait until nothing runs, for up to `drain_s`, or until `end_drain`."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s) as self._draining:
                    await self._turns_ended()
        finally:
            self._draining = None

    def taken(self) -> WorkDone:
        return self._engine.work.taken(self._engine.process.progress())

    async def _turns_ended(self) -> None:
        while self._engine.work.inside or self._rollout.preparing:
            await self._rollout.preparing.none()
            await self._engine.work.idle.wait()

    def _close_intake(self) -> None:
        for slots in self._slots:
            slots.close()
