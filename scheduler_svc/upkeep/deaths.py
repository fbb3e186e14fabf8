"""Deaths of services, as events of the operator's. Tenants learn from `why` that a service of their pool does not work."""

from collections.abc import Collection, Sequence

import structlog

from common import streams
from common.bus import Bus
from common.messages import ProcessLife
from common.messages.lives import FAULTY_AFTER, REMEMBERED_S, life_key
from scheduler_svc.base.database import Database
from scheduler_svc.base.queries.replicas import reported_deaths

KEPT_S = 86_400.0
"""Seconds for which the life of a process that is gone is kept."""

log = structlog.get_logger()


async def report_deaths(database: Database, lives: Sequence[ProcessLife], now_s: float, reported: set[tuple[str, str, float]]) -> bool:
    """Emit an event for each death of the last hour that has none yet; returns whether there was one. `reported`: what this process knows
    to be reported, which grows."""
    recent = [life for life in lives if life.died_s is not None and now_s - life.died_s < REMEMBERED_S]
    died = [life for life in recent if (life.service, life.replica, life.died_s) not in reported]
    if not died:
        return False
    async with database.transaction() as tx:
        reported |= await reported_deaths(tx.connection)
        new = [life for life in died if (life.service, life.replica, life.died_s) not in reported]
        for life in new:
            is_faulty = life.deaths >= FAULTY_AFTER
            told = life.model_dump(include={"service", "replica", "pool", "died_s", "deaths", "cause"}) | {"faulty": is_faulty}
            tx.emit_event(streams.EVERY_TENANT, "none", "death", told)
            log.error("service_died", died=f"{life.service}.{life.replica}", cause=life.cause, deaths=life.deaths, faulty=is_faulty)
    reported |= {(life.service, life.replica, life.died_s) for life in new if life.died_s is not None}
    return bool(new)


async def forget_lives(bus: Bus, lives: Sequence[ProcessLife], alive: Collection[str], now_s: float) -> None:
    """Remove those of processes that are gone: a container that replaces one has another name. `alive`: keys of replicas that report."""
    gone = [life for life in lives if life.ended is not None or (life.service != "scheduler" and _key(life) not in alive)]
    if old := [_key(life) for life in gone if now_s - max(life.began_s, life.died_s or 0.0) > KEPT_S]:
        await bus.kv.remove(streams.HISTORY_BUCKET, old)


def _key(life: ProcessLife) -> str:
    return life_key(life.service, life.replica)
