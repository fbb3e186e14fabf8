"""Queries on replicas: the reports of those alive, and the events of those that died."""

from collections.abc import Sequence

from sqlalchemy import Float, delete, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import ReplicaReport, as_json
from common.streams import EVERY_TENANT
from scheduler_svc.base.tables import events, replicas


async def record_replicas(connection: AsyncConnection, reports: Sequence[ReplicaReport]) -> None:
    """Refresh the rows of the replicas that are alive; forget those gone for a day."""
    await connection.execute(delete(replicas).where(replicas.c.seen_at < func.now() - text("interval '1 day'")))
    for report in reports:
        values = {"service": report.service, "pool": report.pool, "report": as_json(report), "seen_at": func.now()}
        statement = insert(replicas).values(id=f"{report.service}.{report.replica}", **values)
        await connection.execute(statement.on_conflict_do_update(index_elements=[replicas.c.id], set_=values))


DEATHS_LOCK = 7_341_022
"""Of the replica of the scheduler that reports deaths: another one waits, and then finds its events."""


async def reported_deaths(connection: AsyncConnection) -> set[tuple[str, str, float]]:
    """(service, replica, time of death) of each event of the last day, until the transaction's end with no others."""
    await connection.execute(select(func.pg_advisory_xact_lock(DEATHS_LOCK)))
    data = events.c.data
    statement = select(data["service"].astext, data["replica"].astext, data["died_s"].astext.cast(Float)).where(
        events.c.tenant == EVERY_TENANT,
        events.c.task == "none",
        events.c.event == "death",
        events.c.at > func.now() - text("interval '1 day'"),
    )
    return {(service, replica, died_s) for service, replica, died_s in await connection.execute(statement)}
