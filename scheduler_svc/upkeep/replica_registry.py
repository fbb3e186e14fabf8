"""Registry of live replicas and their capacity, from the key-value bucket `replicas`."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common.bus import Bus
from common.homes import AWAKE, BEGUN
from common.messages import ProcessLife, ReplicaReport, TroubleOf, trouble_of
from common.messages.lives import LIVES, life_key
from common.periodic import run_forever
from common.streams import HISTORY_BUCKET, REPLICA_TTL_S, REPLICAS_BUCKET
from scheduler_svc.tenancy.decisions.shares import Capacity

log = structlog.get_logger()


@dataclass(frozen=True)
class Samplers:
    """Sum over the live rollout replicas of a pool."""

    sequences: int = 0
    kv_tokens: int = 0
    awake: int = 0
    """Of these sequences, those of samplers that were awake when they reported."""
    sampled: float = 0.0
    """Sequences that these are decoding."""

    def __add__(self, other: "Samplers") -> "Samplers":
        return Samplers(
            self.sequences + other.sequences, self.kv_tokens + other.kv_tokens, self.awake + other.awake, self.sampled + other.sampled
        )

    def times(self, factor: float) -> Capacity:
        """Capacity for work in flight: a multiple of what these samplers decode concurrently."""
        return Capacity(self.sequences, self.kv_tokens).times(factor)


class ReplicaRegistry:
    """Live replicas of the other services; NATS expires entries that are not renewed."""

    def __init__(self, bus: Bus, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._changed = changed
        self._reports: list[ReplicaReport] = []
        self.lives: list[ProcessLife] = []
        """Of all processes that any scheduler has seen lately, its own among them."""
        self.were_read = False
        """Whether the reports are those of the bucket: from its first reading on."""

    async def watch(self) -> None:
        """Read the bucket periodically, until cancelled; it expires entries by itself."""

        await run_forever(self._read, REPLICA_TTL_S / 5, "replicas_unknown")

    async def _read(self) -> None:
        self.lives = await self._bus.kv.values(HISTORY_BUCKET, ProcessLife, LIVES)  # first: what is ready there reports by then
        before, self._reports = self._reports, await self._bus.kv.values(REPLICAS_BUCKET, ReplicaReport)
        self.were_read = True
        if {report.replica for report in before} != {report.replica for report in self._reports}:
            log.info("replicas_changed", replicas=sorted(f"{report.service}.{report.replica}" for report in self._reports))
            self._changed()

    @property
    def alive(self) -> set[str]:
        """Keys of the replicas that report."""
        return {life_key(report.service, report.replica) for report in self._reports}

    @property
    def troubles(self) -> list[TroubleOf]:
        """Processes that are not ready, or died lately. A scheduler does not report: it lives, as it answers."""
        alive, now_s = self.alive, self._bus.clock.now_s()
        keys = [(life, life.service == "scheduler" or life_key(life.service, life.replica) in alive) for life in self.lives]
        found = [trouble_of(life, now_s, is_alive=is_alive) for life, is_alive in keys]
        return [trouble for trouble in found if trouble is not None]

    @property
    def reports(self) -> list[ReplicaReport]:
        return self._reports

    @property
    def families(self) -> set[str]:
        return {family for report in self._reports for family in report.families}

    @property
    def samplers(self) -> dict[str, Samplers]:
        """Live rollout replicas by pool."""
        found: dict[str, Samplers] = {}
        for report in self._reports:
            if report.service == "rollout" and report.pool:
                found[report.pool] = found.get(report.pool, Samplers()) + _samplers(report)
        return found


def _samplers(report: ReplicaReport) -> Samplers:
    """One replica. On a shared accelerator, one that does not report whether it is awake counts as parked."""
    if not report.busy.get(AWAKE, BEGUN not in report.busy):
        return Samplers(report.sequences, report.kv_tokens)
    sampled = report.busy.get("sequences", report.sequences)  # a replica that does not report it counts as full
    return Samplers(report.sequences, report.kv_tokens, report.sequences, sampled)
