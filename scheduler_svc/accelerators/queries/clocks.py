"""Queries on the clocks of pools: each stands while the pool's samplers are parked."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import executor_name


@dataclass(frozen=True)
class Clock:
    """A row of `pool_clocks`."""

    pool: str
    parked_ms: int
    """Of past times."""
    since_ms: int | None
    """Begin of the present one; None while a sampler is awake."""


_SINCE = "(extract(epoch FROM parked_since) * 1000)::bigint AS since_ms"
_ADD = text("""
INSERT INTO pool_clocks (pool, parked_since) SELECT p, to_timestamp(:now_ms / 1000.0) FROM unnest(CAST(:pools AS text[])) p
ON CONFLICT DO NOTHING
""")


async def add(connection: AsyncConnection, pools: Collection[str], now_ms: int) -> None:
    """Clocks of pools that have none: they stand."""
    await connection.execute(_ADD, {"pools": sorted(pools), "now_ms": now_ms})


_ALL = text(f"SELECT pool, parked_ms, {_SINCE} FROM pool_clocks ORDER BY pool")


async def all_clocks(connection: AsyncConnection) -> list[Clock]:
    return [Clock(row.pool, row.parked_ms, row.since_ms) for row in (await connection.execute(_ALL)).all()]


_STOP = text(f"""
UPDATE pool_clocks SET parked_since = to_timestamp(:now_ms / 1000.0)
WHERE pool = :pool AND parked_since IS NULL AND NOT EXISTS (
    SELECT FROM slices s WHERE s.pool = :pool AND s.executor = :sampler AND s.ended_at IS NULL AND s.awake_at IS NOT NULL)
RETURNING pool, parked_ms, {_SINCE}
""")


async def stop(connection: AsyncConnection, pool: str, now_ms: int) -> Clock | None:
    """Let the clock stand; None where it does, or another sampler of the pool is awake."""
    row = (await connection.execute(_STOP, {"pool": pool, "sampler": executor_name("rollout", pool), "now_ms": now_ms})).first()
    return Clock(row.pool, row.parked_ms, row.since_ms) if row is not None else None


_START = text(f"""
UPDATE pool_clocks SET parked_since = NULL,
    parked_ms = parked_ms + greatest(0, :now_ms - (extract(epoch FROM parked_since) * 1000)::bigint)
WHERE pool = :pool AND parked_since IS NOT NULL RETURNING pool, parked_ms, {_SINCE}
""")


async def start(connection: AsyncConnection, pool: str, now_ms: int) -> Clock | None:
    """Let the clock go; None where it does."""
    row = (await connection.execute(_START, {"pool": pool, "now_ms": now_ms})).first()
    return Clock(row.pool, row.parked_ms, row.since_ms) if row is not None else None
