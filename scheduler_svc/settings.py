"""Settings of the scheduler."""

from typing import ClassVar

from pydantic import Field

from common.runtime.settings import Settings
from scheduler_svc.decisions.scheduling_policy import SchedulingPolicy


class SchedulerSettings(Settings):
    service: ClassVar[str] = "SCHEDULER"

    database_url: str = "postgresql+psycopg://marlaas@127.0.0.1:5432/marlaas"
    policy: SchedulingPolicy = SchedulingPolicy.ASYNCHRONOUS
    """`sequential` (one task at a time) and `synchronous` (all tasks in lockstep) are baselines for measurements."""
    tick_s: float = Field(default=1.0, gt=0)
    """How often deadlines are looked at; everything else is driven by events."""
    oversubscription: float = Field(default=1.5, ge=1)
    """In-flight work as a multiple of what the rollout replicas decode at once: the rest is being graded or waits."""
    most_oversubscription: float = Field(default=8.0, ge=1)
    """How far that grows by itself while slow environments leave the rollout replicas idle; 1: not at all."""
    sweep_s: float = Field(default=300.0, gt=0)
    """How often messages and blobs that nothing needs any more are looked for."""
    store_alarm: float = Field(default=0.8, gt=0, le=1)
    """Share of MARLAAS_NATS_BLOBS_BYTES at which live tasks get an event `storage`, before no step can be stored any more."""
