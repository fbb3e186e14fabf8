"""Live replicas and their capacity, from the key-value bucket `replicas`; their rows, and their deaths as events for operators.

Tenants learn from `why` that a service of their pool is failing.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from operator import add

import structlog
from sqlalchemy import Float, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus
from common.homes import AWAKE, BEGUN
from common.messages import ProcessLife, ReplicaReport, TroubleOf, as_json, trouble_of
from common.messages.lives import FAULTY_AFTER, LIVES, REMEMBERED_S, life_key
from common.messages.status import WITHHELD
from common.periodic import run_forever
from common.streams import EVERY_TENANT, HISTORY_BUCKET, REPLICA_TTL_S, REPLICAS_BUCKET
from scheduler_svc.base.database import Database
from scheduler_svc.base.tables import events, replicas
from scheduler_svc.tenancy.decisions.shares import Capacity


async def record_replicas(connection: AsyncConnection, reports: Sequence[ReplicaReport]) -> None:
    """Refresh the rows of live replicas; delete rows not refreshed for a day."""
    await connection.execute(delete(replicas).where(replicas.c.seen_at < func.now() - text("interval '1 day'")))
    for report in reports:
        values = {"service": report.service, "pool": report.pool, "report": as_json(report), "seen_at": func.now()}
        statement = insert(replicas).values(id=f"{report.service}.{report.replica}", **values)
        await connection.execute(statement.on_conflict_do_update(index_elements=[replicas.c.id], set_=values))


DEATHS_LOCK = 7_341_022
"""Advisory lock for reporting deaths: a second scheduler replica waits, and then finds the first one's events."""


async def reported_deaths(connection: AsyncConnection) -> set[tuple[str, str, float]]:
    """(service, replica, time of death) of each death event of the last day; locks out other reporters until the transaction ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(DEATHS_LOCK)))
    data = events.c.data
    statement = select(data["service"].astext, data["replica"].astext, data["died_s"].astext.cast(Float)).where(
        events.c.tenant == EVERY_TENANT,
        events.c.task == "none",
        events.c.event == "death",
        events.c.at > func.now() - text("interval '1 day'"),
    )
    return {(service, replica, died_s) for service, replica, died_s in await connection.execute(statement)}


log = structlog.get_logger()


@dataclass(frozen=True)
class Samplers:
    """Load and capacity summed over a pool's live rollout replicas."""

    sequences: int = 0
    kv_tokens: int = 0
    awake: int = 0
    """Sequences that the samplers awake at their last report decode concurrently."""
    sampled: float = 0.0
    """Sequences that the awake samplers are decoding."""
    withheld: float = 0.0
    """Further sequences that these decode concurrently without served requests."""

    def __add__(self, other: "Samplers") -> "Samplers":
        return Samplers(*map(add, astuple(self), astuple(other)))

    def times(self, factor: float) -> Capacity:
        """Capacity for work in flight: `factor` times what these samplers decode concurrently."""
        return Capacity(self.sequences, self.kv_tokens).times(factor)


class ReplicaRegistry:
    """Live replicas of all services but the scheduler; NATS expires entries that are not renewed."""

    def __init__(self, bus: Bus, changed: Callable[[], None]) -> None:
        self._bus = bus
        self._changed = changed
        self._reports: list[ReplicaReport] = []
        self.lives: list[ProcessLife] = []
        """Lives of all processes that any scheduler has seen recently, including schedulers."""
        self.were_read = False
        """Whether the bucket has been read at least once."""

    async def watch(self) -> None:
        """Read the bucket periodically until cancelled; NATS expires its entries."""

        await run_forever(self._read, REPLICA_TTL_S / 5, "replicas_unknown")

    async def _read(self) -> None:
        self.lives = await self._bus.kv.values(HISTORY_BUCKET, ProcessLife, LIVES)  # first: processes ready in it have reported by then
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
        """Processes that are not ready, or died recently. Schedulers do not report; they count as alive."""
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
        """Load and capacity of live rollout replicas, by pool."""
        found: dict[str, Samplers] = {}
        for report in self._reports:
            if report.service == "rollout" and report.pool and report.sequences:  # not one that only serves
                found[report.pool] = found.get(report.pool, Samplers()) + _samplers(report)
        return found


def _samplers(report: ReplicaReport) -> Samplers:
    """Load and capacity of one replica. On a shared accelerator, a replica that does not report whether it is awake counts as parked."""
    if not report.busy.get(AWAKE, BEGUN not in report.busy):
        return Samplers(report.sequences, report.kv_tokens)
    sampled = report.busy.get("sequences", report.sequences)  # a replica that does not report this counts as full
    return Samplers(report.sequences, report.kv_tokens, report.sequences, sampled, report.busy.get(WITHHELD, 0.0))


KEPT_S = 86_400.0
"""Seconds for which the life of a process that is gone is kept."""


async def report_deaths(database: Database, lives: Sequence[ProcessLife], now_s: float, reported: set[tuple[str, str, float]]) -> bool:
    """Emit an event for each unreported death of the last hour; returns whether there was one.

    `reported`: deaths known to be reported; updated in place.
    """
    recent = [life for life in lives if life.died_s is not None and now_s - life.died_s < REMEMBERED_S]
    died = [life for life in recent if (life.service, life.replica, life.died_s) not in reported]
    if not died:
        return False
    async with database.transaction() as tx:
        reported |= await reported_deaths(tx.connection)
        new = [life for life in died if (life.service, life.replica, life.died_s) not in reported]
        for life in new:
            is_faulty = life.deaths >= FAULTY_AFTER
            data = life.model_dump(include={"service", "replica", "pool", "died_s", "deaths", "cause"}) | {"faulty": is_faulty}
            tx.emit_event(streams.EVERY_TENANT, "none", "death", data)
            log.error("service_died", died=f"{life.service}.{life.replica}", cause=life.cause, deaths=life.deaths, faulty=is_faulty)
    reported |= {(life.service, life.replica, life.died_s) for life in new if life.died_s is not None}
    return bool(new)


async def forget_lives(bus: Bus, lives: Sequence[ProcessLife], alive: Collection[str], now_s: float) -> None:
    """Remove old lives of processes that are gone: replacement containers have other names. `alive`: keys of replicas that report."""
    gone = [life for life in lives if life.ended is not None or (life.service != "scheduler" and _key(life) not in alive)]
    if old := [_key(life) for life in gone if now_s - max(life.began_s, life.died_s or 0.0) > KEPT_S]:
        await bus.kv.remove(streams.HISTORY_BUCKET, old)


def _key(life: ProcessLife) -> str:
    return life_key(life.service, life.replica)
