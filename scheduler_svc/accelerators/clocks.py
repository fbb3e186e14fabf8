"""Clocks of pools, in PostgreSQL and, for environments and samplers, in the bucket `pools`.

A clock stands from when the last sampler of its pool is ordered to park until one is awake.
"""

from common import streams
from common.accelerators import executor_name
from common.messages import PoolClock
from scheduler_svc.accelerators.queries import clocks
from scheduler_svc.accelerators.queries.clocks import Clock
from scheduler_svc.base.transaction import OutboxMessage, Transaction


async def stop(tx: Transaction, executor: str, pool: str, now_ms: int) -> None:
    """`executor` of the pool computes no more; nothing where it is no sampler."""
    if executor == executor_name("rollout", pool):
        _post(tx, await clocks.stop(tx.connection, pool, now_ms))


async def start(tx: Transaction, executor: str, pool: str, now_ms: int) -> None:
    """`executor` of the pool is awake; nothing where it is no sampler."""
    if executor == executor_name("rollout", pool):
        _post(tx, await clocks.start(tx.connection, pool, now_ms))


async def begin(tx: Transaction, sampled: set[str], now_ms: int) -> None:
    """Make clocks of new pools, let those stand that have no sampler awake, and those go that share nothing; write all to the bucket."""
    await clocks.add(tx.connection, sampled, now_ms)
    for pool in sorted(sampled):
        await clocks.stop(tx.connection, pool, now_ms)
    for clock in await clocks.all_clocks(tx.connection):
        _post(tx, clock if clock.pool in sampled else await clocks.start(tx.connection, clock.pool, now_ms) or clock)


def _post(tx: Transaction, clock: Clock | None) -> None:
    if clock is not None:
        since_s = None if clock.since_ms is None else clock.since_ms / 1000
        message = PoolClock(parked_s=clock.parked_ms / 1000, parked_since_s=since_s)
        tx.post([OutboxMessage(streams.value_subject(streams.CLOCKS_BUCKET, clock.pool), message, "", as_json=True)])
