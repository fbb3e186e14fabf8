"""Queries on replicas: the reports of those alive."""

from collections.abc import Sequence

from sqlalchemy import delete, func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import ReplicaReport, as_json
from scheduler_svc.store.tables import replicas


async def record_replicas(connection: AsyncConnection, reports: Sequence[ReplicaReport]) -> None:
    """Refresh the rows of the replicas that are alive; forget those gone for a day."""
    await connection.execute(delete(replicas).where(replicas.c.seen_at < func.now() - text("interval '1 day'")))
    for report in reports:
        values = {"service": report.service, "pool": report.pool, "report": as_json(report), "seen_at": func.now()}
        statement = insert(replicas).values(id=f"{report.service}.{report.replica}", **values)
        await connection.execute(statement.on_conflict_do_update(index_elements=[replicas.c.id], set_=values))
