"""The sampler as an executor of a shared accelerator: it accepts messages while its engine is awake and none while it is parked."""

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
"""Maximum seconds that a park waits for prompts to be tokenized and finished turns to be published."""


class Sampler:
    """Implements `common.accelerators.Parkable`. Its operations are engine requests: turns of group members and served requests."""

    def __init__(
        self,
        engine: Engine,
        adapters: Adapters,
        rollout: Rollout,
        slots: Sequence[Slots],
        serving: Serving | None = None,
        gpu_bytes: int | None = None,
    ) -> None:
        """`engine` may be closed until the first wake. `slots`: slots of every consumer whose messages reach the engine.
        `gpu_bytes`: as in `Parking`.
        """
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
        """Current load. Requests still on their way to the engine count as begun: a replica that looks idle would lose the accelerator
        and return their messages, and a parked sampler keeps requests at its gate, which are the only sign that it should wake.
        """
        work, gate = self._engine.work, self._engine.gate
        outside = gate.waiting + len(self._rollout.preparing) + (self._serving.preparing if self._serving else 0)
        begun = work.inside + outside
        return Load(Function.GENERATE if gate.is_open and begun else None, begun, work.left_s())

    async def wake(self) -> None:
        """Wake as `Parking.wake` does, then load adapters that were fetched while parked."""
        await self._adapters.stop()
        await self._parking.wake(self._adapters.recheck)
        self._adapters.go()
        for slots in self._slots:
            slots.open()

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        """Park to `tier`; return the seconds that the move took.

        Running requests may finish for up to `drain_s` (None: no limit). The rest are frozen and finish after a wake, or are handed back
        (`Parking.park`). Served requests that still wait for an adapter are not waited for.
        """
        self._close_intake()
        self._rollout.hand_back()
        if self._engine.gate.is_open:  # frozen requests can finish only after a wake
            await self._drain(drain_s)
        await self._adapters.stop()
        began_s = time.monotonic()
        await self._parking.park(tier)
        moved_s = time.monotonic() - began_s
        with suppress(TimeoutError):  # otherwise prompts and replies would be prepared while the next executor holds the accelerator
            async with asyncio.timeout(SETTLED_WITHIN_S):
                await self._rollout.preparing.none()
                await self._rollout.unanswered.none()
        return moved_s

    def end_drain(self) -> None:
        if self._draining is not None and not self._draining.expired():
            self._draining.reschedule(asyncio.get_running_loop().time())

    async def _drain(self, drain_s: float | None) -> None:
        """Wait until no request runs, at most `drain_s` seconds or until `end_drain`."""
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
