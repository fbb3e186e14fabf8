"""Clocks of pools, in PostgreSQL and, for environments and samplers, in the bucket `pools`.

A pool's clock is stopped from the order to park its last sampler until a sampler is awake.
"""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.accelerators import executor_name
from common.messages import PoolClock
from scheduler_svc.base.transaction import Transaction


@dataclass(frozen=True)
class Clock:
    """A row of `pool_clocks`."""

    pool: str
    parked_ms: int
    """Total milliseconds parked in the past, without the current parking."""
    since_ms: int | None
    """Start of the current parking in Unix milliseconds; None while a sampler is awake."""


async def stop(tx: Transaction, executor: str, pool: str, now_ms: int) -> None:
    """Stop the pool's clock as `executor` parks, unless another of its samplers is awake; no-op if `executor` is not a sampler."""
    if executor == executor_name("rollout", pool):
        _post(tx, await _stop(tx.connection, pool, now_ms))


async def start(tx: Transaction, executor: str, pool: str, now_ms: int) -> None:
    """Start the pool's clock, because `executor` is awake; no-op if `executor` is not a sampler."""
    if executor == executor_name("rollout", pool):
        _post(tx, await _start(tx.connection, pool, now_ms))


async def begin(tx: Transaction, sampled: set[str], now_ms: int) -> None:
    """Create clocks of new pools; stop clocks of pools without an awake sampler; start clocks of pools that no longer share an accelerator.

    All clocks are written to the bucket. `sampled`: pools with a sampler on a shared accelerator.
    """
    await _add(tx.connection, sampled, now_ms)
    for pool in sorted(sampled):
        await _stop(tx.connection, pool, now_ms)
    for clock in await _all_clocks(tx.connection):
        _post(tx, clock if clock.pool in sampled else await _start(tx.connection, clock.pool, now_ms) or clock)


def _post(tx: Transaction, clock: Clock | None) -> None:
    if clock is not None:
        since_s = None if clock.since_ms is None else clock.since_ms / 1000
        message = PoolClock(parked_s=clock.parked_ms / 1000, parked_since_s=since_s)
        tx.post_value(streams.CLOCKS_BUCKET, clock.pool, message)


_SINCE = "(extract(epoch FROM parked_since) * 1000)::bigint AS since_ms"
_ADD = text("""
INSERT INTO pool_clocks (pool, parked_since) SELECT p, to_timestamp(:now_ms / 1000.0) FROM unnest(CAST(:pools AS text[])) p
ON CONFLICT DO NOTHING
""")


async def _add(connection: AsyncConnection, pools: Collection[str], now_ms: int) -> None:
    """Insert clocks for pools without one, as stopped."""
    await connection.execute(_ADD, {"pools": sorted(pools), "now_ms": now_ms})


_ALL = text(f"SELECT pool, parked_ms, {_SINCE} FROM pool_clocks ORDER BY pool")


async def _all_clocks(connection: AsyncConnection) -> list[Clock]:
    return [Clock(row.pool, row.parked_ms, row.since_ms) for row in (await connection.execute(_ALL)).all()]


_STOP = text(f"""
UPDATE pool_clocks SET parked_since = to_timestamp(:now_ms / 1000.0)
WHERE pool = :pool AND parked_since IS NULL AND NOT EXISTS (
    SELECT FROM slices s WHERE s.pool = :pool AND s.executor = :sampler AND s.ended_at IS NULL AND s.awake_at IS NOT NULL)
RETURNING pool, parked_ms, {_SINCE}
""")


async def _stop(connection: AsyncConnection, pool: str, now_ms: int) -> Clock | None:
    """Stop the pool's clock; None if it is already stopped, or a sampler of the pool is awake."""
    row = (await connection.execute(_STOP, {"pool": pool, "sampler": executor_name("rollout", pool), "now_ms": now_ms})).first()
    return Clock(row.pool, row.parked_ms, row.since_ms) if row is not None else None


_START = text(f"""
UPDATE pool_clocks SET parked_since = NULL,
    parked_ms = parked_ms + greatest(0, :now_ms - (extract(epoch FROM parked_since) * 1000)::bigint)
WHERE pool = :pool AND parked_since IS NOT NULL RETURNING pool, parked_ms, {_SINCE}
""")


async def _start(connection: AsyncConnection, pool: str, now_ms: int) -> Clock | None:
    """Start the pool's clock; None if it is already running."""
    row = (await connection.execute(_START, {"pool": pool, "now_ms": now_ms})).first()
    return Clock(row.pool, row.parked_ms, row.since_ms) if row is not None else None
