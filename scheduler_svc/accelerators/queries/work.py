"""Queries on tasks and tenants with work in a pool: for whom a slice is ordered, who claims time, and who pays."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import Function
from scheduler_svc.accelerators.decisions.situation import WINDOW_S

_OF_SAMPLER = text("""
SELECT t.id FROM tasks t
WHERE t.pool = :pool AND t.state IN ('running', 'paused')
    AND EXISTS (SELECT FROM groups g WHERE g.task = t.id AND g.state = 'open')
ORDER BY t.id
""")
_OF_TRAINER = text("""
SELECT t.id FROM tasks t WHERE t.pool = :pool AND t.state IN ('running', 'paused')
    AND EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.state = 'batched') ORDER BY t.id
""")


async def tasks_with_work(connection: AsyncConnection, pool: str, function: Function) -> list[str]:
    """Tasks of the pool that have something to sample, or to train on."""
    statement = _OF_SAMPLER if function is Function.GENERATE else _OF_TRAINER
    return list((await connection.execute(statement, {"pool": pool})).scalars())


_PAYERS = text("SELECT id, tenant FROM tasks WHERE pool = :pool AND id = ANY(CAST(:ids AS text[])) ORDER BY id FOR UPDATE")
_FORMER = text("SELECT id, tenant FROM deleted_tasks WHERE id = ANY(CAST(:ids AS text[]))")


@dataclass(frozen=True)
class Payers:
    """Tenants by task."""

    present: dict[str, str]
    """Of locked tasks of the pool."""
    deleted: dict[str, str]

    @property
    def tenants(self) -> dict[str, str]:
        return self.deleted | self.present


async def lock_payers(connection: AsyncConnection, pool: str, ids: Collection[str]) -> Payers:
    """Those among the tasks that are of the pool, also deleted ones; they are locked until this transaction ends."""
    present = {row.id: row.tenant for row in (await connection.execute(_PAYERS, {"pool": pool, "ids": sorted(ids)})).all()}
    missing = sorted(set(ids) - set(present))
    rows = (await connection.execute(_FORMER, {"ids": missing})).all() if missing else []
    return Payers(present, {row.id: row.tenant for row in rows})


@dataclass(frozen=True)
class Running:
    """Running tasks of a pool, by tenant."""

    pool: str
    tenant: str
    weight: float
    has_batch: bool
    """Whether one of them has a batch to train on."""


_RUNNING = text("""
SELECT t.pool, t.tenant, n.weight, bool_or(EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.state = 'batched')) AS has_batch
FROM tasks t JOIN tenants n ON n.id = t.tenant
WHERE t.state = 'running' AND t.pool = ANY(CAST(:pools AS text[])) GROUP BY t.pool, t.tenant, n.weight ORDER BY t.pool, t.tenant
""")


async def running_tenants(connection: AsyncConnection, pools: Collection[str]) -> list[Running]:
    """Tenants with running tasks in each of the pools."""
    rows = (await connection.execute(_RUNNING, {"pools": sorted(pools)})).all()
    return [Running(row.pool, row.tenant, float(row.weight), row.has_batch) for row in rows]


@dataclass(frozen=True)
class Booked:
    """Time of an accelerator within the window, in one pool."""

    accelerator: str
    tenant: str | None
    """None: of slices that are not booked yet, the one in progress among them."""
    pool: str
    ms: int


_BOOKED = text("""
WITH times AS (SELECT to_timestamp(:now_s) AS now, to_timestamp(:since_s) AS since),
first AS (
    SELECT a.name, coalesce((SELECT o.epoch FROM slices o WHERE o.accelerator = a.name AND o.ordered_at <= t.since
                             ORDER BY o.epoch DESC LIMIT 1), 0) AS epoch
    FROM unnest(CAST(:names AS text[])) AS a(name), times t),
recent AS (
    SELECT s.accelerator, s.epoch, s.pool, s.booked_at IS NULL AS is_open,
           greatest(extract(epoch FROM coalesce(s.ended_at, t.now) - s.ordered_at), 0.001) AS held_s,
           greatest(extract(epoch FROM coalesce(s.ended_at, t.now) - greatest(s.ordered_at, t.since)), 0) AS in_s
    FROM first f JOIN slices s ON s.accelerator = f.name AND s.epoch >= f.epoch, times t
    WHERE s.pool = ANY(CAST(:pools AS text[])))
SELECT accelerator, NULL AS tenant, pool, sum(1000 * in_s)::bigint AS ms FROM recent WHERE is_open GROUP BY accelerator, pool
UNION ALL
SELECT r.accelerator, h.tenant, r.pool, sum(h.ms * r.in_s / r.held_s)::bigint
FROM recent r JOIN slice_shares h ON h.accelerator = r.accelerator AND h.epoch = r.epoch
WHERE h.tenant IS NOT NULL GROUP BY r.accelerator, h.tenant, r.pool
""")


async def booked(connection: AsyncConnection, names: Collection[str], pools: Collection[str], now_s: float) -> list[Booked]:
    """Time within WINDOW_S that is booked to tenants, or is not booked yet. `now_s`: NATS's.

    One statement, so that a slice that is booked meanwhile counts once.
    """
    given = {"names": sorted(names), "pools": sorted(pools), "now_s": now_s, "since_s": now_s - WINDOW_S}
    return [Booked(*row) for row in (await connection.execute(_BOOKED, given)).all()]
