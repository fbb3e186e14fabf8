"""Queries on accelerators and executors: registration from the pools file, answers, faults, operators' holds."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import ExecutorState, Tier
from common.messages import LeaseDone
from common.pools import Place

_ACCELERATOR = text("""
INSERT INTO accelerators (id, spec) VALUES (:id, CAST(:spec AS jsonb))
ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, seen_at = now()
""")
_EXECUTOR = text("""
INSERT INTO executors (accelerator, id, pool, service) VALUES (:accelerator, :id, :pool, :service) ON CONFLICT DO NOTHING
""")


async def register(connection: AsyncConnection, specs: Mapping[str, dict[str, JsonValue]], places: Collection[Place]) -> None:
    """Insert the accelerators and executors of the pools file; accelerators no longer in it stay, since slices refer to them."""
    for name, spec in sorted(specs.items()):
        await connection.execute(_ACCELERATOR, {"id": name, "spec": json.dumps(spec)})
    for place in sorted(places, key=lambda one: (one.accelerator, one.executor)):
        row = {"accelerator": place.accelerator, "id": place.executor, "pool": place.pool, "service": place.service}
        await connection.execute(_EXECUTOR, row)


_REMOVED = text("""
SELECT accelerator, id, pool FROM executors
WHERE (accelerator, id) NOT IN (SELECT * FROM unnest(CAST(:accelerators AS text[]), CAST(:ids AS text[]))) ORDER BY accelerator, id
""")


async def removed(connection: AsyncConnection, places: Collection[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """(accelerator, executor, pool) of executors that are not in `places`."""
    given = {"accelerators": [accelerator for accelerator, _ in places], "ids": [executor for _, executor in places]}
    return [(row.accelerator, row.id, row.pool) for row in (await connection.execute(_REMOVED, given)).all()]


_MOVES_OF = text("DELETE FROM moves WHERE accelerator = :accelerator AND executor = :id")
_DELETE = text("DELETE FROM executors WHERE accelerator = :accelerator AND id = :id")


async def delete(connection: AsyncConnection, accelerator: str, executor: str) -> None:
    """Delete an executor with its measured moves; its slices stay."""
    for statement in (_MOVES_OF, _DELETE):
        await connection.execute(statement, {"accelerator": accelerator, "id": executor})


async def locked_epoch(connection: AsyncConnection, accelerator: str) -> int | None:
    """Lock the accelerator's row until the transaction ends; returns the epoch of its newest order, None without such a row."""
    statement = text("SELECT epoch FROM accelerators WHERE id = :id FOR UPDATE")
    row = (await connection.execute(statement, {"id": accelerator})).first()
    return row.epoch if row is not None else None


async def raise_epoch(connection: AsyncConnection, accelerator: str, epoch: int) -> None:
    """Set the epoch of a locked accelerator, unless it is higher already."""
    statement = text("UPDATE accelerators SET epoch = :epoch WHERE id = :id AND epoch < :epoch")
    await connection.execute(statement, {"id": accelerator, "epoch": epoch})


_ANSWERED = text("""
UPDATE executors SET state = :state, tier = :tier, replica = :replica, device_bytes = :device_bytes, host_bytes = :host_bytes,
    epoch = :epoch, answered_at = to_timestamp(:at_s), seen_at = to_timestamp(:at_s)
WHERE accelerator = :accelerator AND id = :id
  AND (epoch < :epoch OR epoch = :epoch AND coalesce(answered_at < to_timestamp(:at_s), true))
RETURNING id
""")


async def record_answer(connection: AsyncConnection, done: LeaseDone) -> bool:
    """Record an executor's answer; False if a newer answer is recorded."""
    row = {
        "accelerator": done.accelerator,
        "id": done.executor,
        "state": done.state.value,
        "tier": done.tier.value,
        "replica": done.replica,
        "device_bytes": done.device_bytes,
        "host_bytes": done.host_bytes,
        "epoch": done.epoch,
        "at_s": done.at_s,
    }
    return (await connection.execute(_ANSWERED, row)).first() is not None


_HEALED = text("""
UPDATE executors SET fault = NULL, faults = 0, retry_at = NULL, needs_room = false
WHERE accelerator = :accelerator AND id = :id AND faults > 0
""")


async def forget_faults(connection: AsyncConnection, accelerator: str, executor: str) -> None:
    """Clear the faults of an executor that has woken."""
    await connection.execute(_HEALED, {"accelerator": accelerator, "id": executor})


async def failures(connection: AsyncConnection, accelerator: str, executor: str) -> int:
    """Number of failed attempts to wake since the executor last woke."""
    statement = text("SELECT faults FROM executors WHERE accelerator = :accelerator AND id = :id")
    return int((await connection.execute(statement, {"accelerator": accelerator, "id": executor})).scalar_one())


_FAILED = text("""
UPDATE executors SET state = :faulty, fault = :fault, faults = faults + 1, retry_at = to_timestamp(:retry_ms / 1000.0),
    needs_room = :needs_room, held = CASE WHEN measured IS NULL THEN held END, measured = NULL
WHERE accelerator = :accelerator AND id = :id
""")


@dataclass(frozen=True)
class Fault:
    """Why an executor could not wake, and the earliest time of its next attempt."""

    reason: str
    retry_ms: int
    needs_room: bool
    """Whether all other executors are parked a tier deeper before the retry."""


async def record_fault(connection: AsyncConnection, accelerator: str, executor: str, fault: Fault) -> None:
    """Record a failed wake. An order to measure its moves is cleared; otherwise the executor would precede all others forever."""
    row = {"faulty": ExecutorState.FAULTY.value, "fault": fault.reason, "retry_ms": fault.retry_ms, "needs_room": fault.needs_room}
    await connection.execute(_FAILED, {"accelerator": accelerator, "id": executor, **row})


_EXPLAINED = text("UPDATE executors SET state = :faulty, fault = :reason WHERE accelerator = :accelerator AND id = :id AND fault = :fault")


async def explain_fault(connection: AsyncConnection, accelerator: str, executor: str, fault: str, reason: str) -> None:
    """Replace the provisional fault text `fault` by its `reason`, now known."""
    given = {"accelerator": accelerator, "id": executor, "faulty": ExecutorState.FAULTY.value, "fault": fault, "reason": reason}
    await connection.execute(_EXPLAINED, given)


_GONE = text("""
UPDATE executors SET state = :cold, tier = :off WHERE accelerator = :accelerator AND id = :id AND tier <> :off RETURNING id
""")


async def record_absence(connection: AsyncConnection, accelerator: str, executor: str) -> bool:
    """Record that no process runs as this executor; False if that was already recorded."""
    given = {"accelerator": accelerator, "id": executor, "cold": ExecutorState.COLD.value, "off": Tier.OFF.value}
    return (await connection.execute(_GONE, given)).first() is not None


# Skips rows locked by others, to be retried at the next call: waiting for them could deadlock.
_READY = text("""
WITH changed AS (
    SELECT e.accelerator, e.id, g.since FROM executors e
    JOIN (SELECT accelerator, id, to_timestamp(ms / 1000.0) AS since
          FROM unnest(CAST(:accelerators AS text[]), CAST(:ids AS text[]), CAST(:ms AS bigint[])) r (accelerator, id, ms)) g
    ON g.accelerator = e.accelerator AND g.id = e.id
    WHERE e.ready_since IS DISTINCT FROM g.since FOR UPDATE OF e SKIP LOCKED)
UPDATE executors e SET ready_since = c.since FROM changed c WHERE e.accelerator = c.accelerator AND e.id = c.id
""")


async def record_ready(connection: AsyncConnection, since_ms: Mapping[tuple[str, str], int | None]) -> None:
    """Record since when work waits for each executor to wake, in Unix milliseconds; None without work."""
    keys = list(since_ms)
    given = {"accelerators": [accelerator for accelerator, _ in keys], "ids": [executor for _, executor in keys]}
    await connection.execute(_READY, {**given, "ms": [since_ms[key] for key in keys]})


_LIFT = text("UPDATE executors SET held = NULL WHERE accelerator = :accelerator AND id = :id AND held = 'wake' AND measured IS NULL")


async def wake_ordered(connection: AsyncConnection, accelerator: str, executor: str) -> None:
    """Clear an operator's wake order once its slice is ordered; an order to measure moves stays, for its second slice."""
    await connection.execute(_LIFT, {"accelerator": accelerator, "id": executor})


_MEASURED = text("""
UPDATE executors e SET measured = NULL, held = CASE WHEN s.has_next THEN NULL ELSE e.held END
FROM (SELECT n.ended, n.parked_at, EXISTS (
          SELECT FROM slices m WHERE m.accelerator = n.accelerator AND m.executor = n.executor AND m.epoch > n.epoch) AS has_next
      FROM slices n WHERE n.accelerator = :accelerator AND n.executor = :id AND n.epoch <= :epoch ORDER BY n.epoch DESC LIMIT 1) s
WHERE e.accelerator = :accelerator AND e.id = :id AND e.held = 'wake' AND e.measured IS NOT NULL
  AND s.ended = 'held' AND s.parked_at IS NULL
""")


async def parked(connection: AsyncConnection, accelerator: str, executor: str, epoch: int) -> None:
    """Record that a measured executor has parked by the order of `epoch`, and only has to wake once more. Call before `slices.parked`."""
    await connection.execute(_MEASURED, {"accelerator": accelerator, "id": executor, "epoch": epoch})


_OPEN_SLICES = text("""
SELECT s.accelerator, s.executor, a.epoch, s.epoch AS open FROM slices s JOIN accelerators a ON a.id = s.accelerator
WHERE s.ended_at IS NULL ORDER BY s.accelerator
""")


async def open_slices(connection: AsyncConnection) -> list[tuple[str, str, int, int]]:
    """(accelerator, executor, the accelerator's epoch, the slice's epoch) of every open slice, also on accelerators no longer deployed."""
    return [(row.accelerator, row.executor, row.epoch, row.open) for row in (await connection.execute(_OPEN_SLICES)).all()]


_ADD_MOVE = text("""
INSERT INTO moves (accelerator, executor, epoch, from_tier, to_tier, bytes, freed_bytes, seconds)
VALUES (:accelerator, :executor, :epoch, :from_tier, :to_tier, :bytes, :freed, :seconds)
""")


async def add_move(connection: AsyncConnection, done: LeaseDone, seconds: float) -> None:
    row = {"accelerator": done.accelerator, "executor": done.executor, "epoch": done.epoch, "seconds": seconds}
    tiers = {"from_tier": done.from_tier.value, "to_tier": done.tier.value}
    await connection.execute(_ADD_MOVE, {**row, **tiers, "bytes": done.device_bytes, "freed": done.freed_bytes})


@dataclass(frozen=True)
class MeasuredMove:
    """A row of `moves`."""

    id: int
    accelerator: str
    executor: str
    from_tier: Tier
    to_tier: Tier
    seconds: float


_NEWEST_MOVES = text("""
SELECT id, accelerator, executor, from_tier, to_tier, seconds FROM (
    SELECT *, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place
    FROM moves WHERE id > :after AND accelerator = ANY(CAST(:names AS text[]))) m
WHERE place <= :most ORDER BY id
""")


async def newest_moves(connection: AsyncConnection, names: Collection[str], most: int, *, after: int = 0) -> list[MeasuredMove]:
    """The newest `most` moves of each (accelerator, executor, tier, tier), oldest first. `after`: only moves with a higher id."""
    rows = (await connection.execute(_NEWEST_MOVES, {"after": after, "names": sorted(names), "most": most})).all()
    return [MeasuredMove(row.id, row.accelerator, row.executor, Tier(row.from_tier), Tier(row.to_tier), row.seconds) for row in rows]


_FORGET_MOVES = text("""
DELETE FROM moves WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place
                    FROM moves) m WHERE place > :most)
""")


async def forget_moves(connection: AsyncConnection, most: int) -> None:
    """Delete all but the newest `most` moves of each (accelerator, executor, tier, tier)."""
    await connection.execute(_FORGET_MOVES, {"most": most})
