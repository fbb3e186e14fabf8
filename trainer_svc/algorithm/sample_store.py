"""Stores samples of steps in the background: no step waits for it, or fails because of it."""

import asyncio

import structlog
from prometheus_client import Counter

from common import streams
from common.bus import Bus, Outgoing
from common.errors import MarlaasError
from common.messages import StepSamples, TrainBatch
from common.resilience.event_loop import TaskSet
from trainer_svc.algorithm.step import StepResult

MAX_WAITING = 8
"""Maximum steps whose samples wait for NATS; samples of further steps are dropped."""
DROPPED = Counter("marlaas_trainer_dropped_samples_total", "Steps whose samples were not stored")

log = structlog.get_logger()


class SampleKeeper:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._running = TaskSet()

    def keep(self, batch: TrainBatch, step: StepResult) -> None:
        """Start to store the attempts that the step keeps; they replace those of an earlier run of the same step."""
        if not step.kept.attempts:
            return
        if len(self._running) >= MAX_WAITING:
            _drop(batch, "NATS is slow")
            return
        self._running.start(self._store(batch, step))

    async def flush(self, within_s: float | None = None) -> bool:
        """Wait until nothing is being stored; False if something still is after `within_s` seconds (None: no limit)."""
        if not self._running:
            return True
        _, running = await asyncio.wait(self._running, timeout=within_s)
        return not running

    async def _store(self, batch: TrainBatch, step: StepResult) -> None:
        version, kept = step.resident.version, step.kept
        samples = StepSamples(
            tenant=batch.tenant, task=batch.task, pool=batch.pool, version=version, attempts=list(kept.attempts), left_out=kept.left_out
        )
        try:
            await self._bus.publish(
                Outgoing(streams.samples(batch.pool, batch.task, version), samples, f"{batch.task}:v{version}:{batch.digest[:16]}:samples")
            )
        except MarlaasError as error:
            _drop(batch, str(error))


def _drop(batch: TrainBatch, reason: str) -> None:
    DROPPED.inc()
    log.warning("samples_dropped", task=batch.task, version=batch.version + 1, reason=reason)
