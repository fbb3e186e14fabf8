"""A trainer as an executor of a shared accelerator: `common.accelerators.Parkable`.

Parking never interrupts a step: the learner finishes the step in progress and hands back queued ones, finished versions are stored,
then the tasks' states and the base model leave the device. No batch is pulled until the next wake. Waking compares the base model's canary
before any computation; each task's state returns with its next step.
"""

import time

from common.accelerators.executors import Load, Tier, WorkDone
from common.bus import Slots
from trainer_svc.learner import Learner
from trainer_svc.service import Trainer
from trainer_svc.state.resident import Residents

PUBLISHED_WITHIN_S = 5.0
"""Minimum seconds that parking waits for versions to be stored; without NATS storing never ends. A late state is parked once it is stored.
"""

SAMPLES_WITHIN_S = 1.0
"""Maximum seconds that parking waits for samples of steps, which block nothing else: encoding them is work of this slice."""


class TrainerExecutor:
    """Parkable trainer. Starts parked if the learner has no base model on its device."""

    def __init__(self, trainer: Trainer, learner: Learner, residents: Residents, slots: Slots) -> None:
        """`slots`: of the batches' consumer, closed while the trainer is parked."""
        self._trainer = trainer
        self._learner = learner
        self._residents = residents
        self._slots = slots
        if learner.tier is not Tier.DEVICE:
            self._pull_nothing()

    @property
    def tier(self) -> Tier:
        return self._learner.tier

    @property
    def device_bytes(self) -> int:
        """Bytes of the base model, the tasks' states, and the largest step, by the estimate of a pool's memory."""
        return self._learner.needs.awake_bytes(self._residents.ranks) + self._residents.size_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of the base model and the tasks' states; on a CPU these are pages that the kernel may reclaim (`device/memory.py`)."""
        return self._learner.needs.weights_bytes + self._residents.size_bytes + self._residents.host_bytes

    @property
    def load(self) -> Load:
        meter = self._learner.meter
        gate = self._trainer.gate
        begun = meter.operations + gate.publishing
        return Load(meter.running, begun, meter.left_s, messages=begun, preparing=max(0, gate.behind - begun))

    def end_drain(self) -> None:
        """No-op: a step cannot be frozen, and the accelerator's lock is held until it has ended."""

    def taken(self) -> WorkDone:
        return self._learner.meter.taken()

    async def wake(self) -> None:
        """Wake the learner and the states, then open the gate. Raises: NoMemory, StateMismatch or Fatal; the trainer then stays parked."""
        await self._learner.wake()
        self._residents.wake()
        self._trainer.gate.open()
        self._slots.open()

    async def park(self, tier: Tier, drain_s: float | None) -> float:
        """Park in `tier`; returns the seconds of the move alone, after all work in progress has ended.

        A step in progress is waited for, however long it takes; `drain_s` bounds the wait until its version is stored.
        Raises: ValueError for a tier from which it cannot wake.
        """
        self._pull_nothing()
        await self._learner.pause()
        await self._trainer.gate.idle(None if drain_s is None else max(drain_s, PUBLISHED_WITHIN_S))
        await self._trainer.samples.flush(SAMPLES_WITHIN_S)
        began_s = time.monotonic()
        await self._residents.park(tier, self._learner.in_thread)
        await self._learner.park(tier)
        return time.monotonic() - began_s

    def _pull_nothing(self) -> None:
        self._trainer.gate.close()
        self._slots.close()
