"""Queries on the life of a slice, from its order to its booking. Except for `forget`, the accelerator must be locked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import BigInteger, Text, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import Function, Tier
from scheduler_svc.base.sql import Rows, Statement
from scheduler_svc.base.states import SliceEnd, SliceReason
from scheduler_svc.base.tables import slice_shares

_SLICE = "accelerator = :accelerator AND epoch = :epoch"


@dataclass(frozen=True)
class NewSlice:
    """A slice to insert as ordered."""

    accelerator: str
    epoch: int
    executor: str
    pool: str
    function: Function
    reason: SliceReason
    tasks: Sequence[str]
    """Tasks with ready work for which the slice is ordered."""
    expected_s: float
    """Expected seconds of the switch."""
    from_tier: Tier
    ordered_ms: int


_ORDER = text("""
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at)
VALUES (:accelerator, :epoch, :executor, :pool, :function, :reason, CAST(:tasks AS text[]), :expected_s, :from_tier,
        to_timestamp(:ordered_ms / 1000.0))
""")


async def order(connection: AsyncConnection, new: NewSlice) -> None:
    """Insert a slice. Raises: IntegrityError if another slice of the accelerator is open."""
    values = {"function": new.function.value, "reason": new.reason.value, "from_tier": new.from_tier.value, "tasks": list(new.tasks)}
    row = {name: getattr(new, name) for name in ("accelerator", "epoch", "executor", "pool", "expected_s", "ordered_ms")}
    await connection.execute(_ORDER, {**row, **values})


@dataclass(frozen=True)
class OpenSlice:
    """The slice in progress."""

    epoch: int
    executor: str
    pool: str
    latest_ms: int
    """Latest of its times so far, in Unix milliseconds; it cannot end earlier."""
    has_woken: bool
    """Whether its executor has woken."""


_OPEN = text("""
SELECT epoch, executor, pool, (extract(epoch FROM coalesce(awake_at, ordered_at)) * 1000)::bigint AS latest_ms,
       awake_at IS NOT NULL AS has_woken
FROM slices WHERE accelerator = :accelerator AND ended_at IS NULL
""")
_LATEST = text("""
SELECT coalesce((extract(epoch FROM max(ended_at)) * 1000)::bigint, 0)
FROM (SELECT ended_at FROM slices WHERE accelerator = :accelerator ORDER BY epoch DESC LIMIT 1) s
""")


async def open_slice(connection: AsyncConnection, accelerator: str) -> OpenSlice | None:
    row = (await connection.execute(_OPEN, {"accelerator": accelerator})).first()
    return OpenSlice(row.epoch, row.executor, row.pool, row.latest_ms, row.has_woken) if row is not None else None


async def latest_end_ms(connection: AsyncConnection, accelerator: str) -> int:
    """End of the accelerator's newest slice in Unix milliseconds; 0 if it is open or there is none."""
    return int((await connection.execute(_LATEST, {"accelerator": accelerator})).scalar_one())


_AWAKE = text(f"""
UPDATE slices SET awake_at = to_timestamp(greatest(:awake_ms, (extract(epoch FROM ordered_at) * 1000)::bigint) / 1000.0)
WHERE {_SLICE} AND executor = :executor AND awake_at IS NULL AND ended_at IS NULL RETURNING epoch
""")


async def begin(connection: AsyncConnection, accelerator: str, epoch: int, executor: str, awake_ms: int) -> bool:
    """Record that the slice's executor has woken; False if it had already woken, the slice has ended, or it is another executor's."""
    given = {"accelerator": accelerator, "epoch": epoch, "executor": executor, "awake_ms": awake_ms}
    return (await connection.execute(_AWAKE, given)).first() is not None


_END = text(f"""
UPDATE slices SET ended = :ended, ended_at = to_timestamp(:ended_ms / 1000.0),
    asked_at = CASE WHEN :asked THEN to_timestamp(:ended_ms / 1000.0) ELSE asked_at END
WHERE {_SLICE} AND ended_at IS NULL RETURNING epoch
""")


async def end(connection: AsyncConnection, accelerator: str, epoch: int, how: SliceEnd, ended_ms: int, *, asked: bool) -> bool:
    """End the open slice; False if it had already ended. `asked`: whether its executor is ordered to park."""
    given = {"accelerator": accelerator, "epoch": epoch, "ended": how.value, "ended_ms": ended_ms, "asked": asked}
    return (await connection.execute(_END, given)).first() is not None


_EXTEND = text("""
WITH drained AS (
    SELECT s.epoch, s.ended_at, n.epoch AS next,
           least(to_timestamp(:until_ms / 1000.0), coalesce(n.awake_at, n.ended_at, 'infinity')) AS until
    FROM slices s
    LEFT JOIN LATERAL (
        SELECT * FROM slices m WHERE m.accelerator = s.accelerator AND m.epoch > s.epoch ORDER BY m.epoch LIMIT 1) n ON true
    WHERE s.accelerator = :accelerator AND s.executor = :executor AND s.ended IN ('switched', 'held') AND s.awake_at IS NOT NULL
      AND s.parked_at IS NULL AND s.booked_at IS NULL AND n.booked_at IS NULL
      AND s.epoch = (SELECT max(epoch) FROM slices WHERE accelerator = :accelerator AND executor = :executor AND epoch <= :epoch)),
followed AS (
    UPDATE slices n SET ordered_at = d.until FROM drained d
    WHERE n.accelerator = :accelerator AND n.epoch = d.next AND d.until > n.ordered_at)
UPDATE slices s SET ended_at = d.until FROM drained d
WHERE s.accelerator = :accelerator AND s.epoch = d.epoch AND d.until > d.ended_at
""")


async def extend(connection: AsyncConnection, accelerator: str, executor: str, epoch: int, until_ms: int) -> None:
    """Extend an ended slice until `until_ms`, when its executor finished its running work. `epoch`: of the order to park.

    The extended time is not part of the next slice's switch.
    """
    await connection.execute(_EXTEND, {"accelerator": accelerator, "executor": executor, "epoch": epoch, "until_ms": until_ms})


_PARKED = text("""
UPDATE slices SET parked_at = to_timestamp(:parked_ms / 1000.0), to_tier = :tier
WHERE accelerator = :accelerator AND executor = :executor AND parked_at IS NULL AND ended_at IS NOT NULL AND epoch = (
    SELECT max(epoch) FROM slices WHERE accelerator = :accelerator AND executor = :executor AND epoch <= :epoch)
""")


async def parked(connection: AsyncConnection, accelerator: str, executor: str, epoch: int, tier: Tier, parked_ms: int) -> None:
    """Record that the executor of the ended slice has parked, by an order of `epoch`."""
    given = {"accelerator": accelerator, "executor": executor, "epoch": epoch, "tier": tier.value, "parked_ms": parked_ms}
    await connection.execute(_PARKED, given)


@dataclass(frozen=True)
class EndedSlice:
    """An ended slice that is not booked yet."""

    epoch: int
    number: int
    tasks: Sequence[str]
    """Tasks that it was ordered for; empty if its executor failed to wake, since no task pays for that."""
    held_ms: int
    switch_ms: int
    """Milliseconds of the switch to the slice; all its time if its executor never woke."""


_UNBOOKED = text("""
SELECT epoch, number, CASE WHEN awake_at IS NULL AND ended IN ('died', 'faulty') THEN '{}' ELSE tasks END AS tasks,
       (extract(epoch FROM ended_at - ordered_at) * 1000)::bigint AS held_ms,
       (extract(epoch FROM coalesce(awake_at, ended_at) - ordered_at) * 1000)::bigint AS switch_ms
FROM slices WHERE accelerator = :accelerator AND executor = :executor AND booked_at IS NULL AND ended_at IS NOT NULL AND epoch <= :epoch
ORDER BY epoch DESC
""")


async def unbooked(connection: AsyncConnection, accelerator: str, executor: str, epoch: int) -> list[EndedSlice]:
    """Ended, unbooked slices of an executor up to `epoch`, newest first."""
    rows = (await connection.execute(_UNBOOKED, {"accelerator": accelerator, "executor": executor, "epoch": epoch})).all()
    return [EndedSlice(row.epoch, row.number, row.tasks, row.held_ms, row.switch_ms) for row in rows]


_BOOK = text(f"""
UPDATE slices SET booked_at = now(), switch_ms = :switch_ms, busy_ms = :busy_ms, idle_ms = :idle_ms, score_ms = :score_ms
WHERE {_SLICE} AND booked_at IS NULL AND ended_at IS NOT NULL RETURNING epoch
""")


async def book(connection: AsyncConnection, accelerator: str, one: EndedSlice, busy_ms: int, score_ms: int) -> bool:
    """Book the slice's use; False if it was already booked. `busy_ms`: at most its time awake; `score_ms`: part of `busy_ms`."""
    given = {"accelerator": accelerator, "epoch": one.epoch, "switch_ms": one.switch_ms, "busy_ms": busy_ms, "score_ms": score_ms}
    row = (await connection.execute(_BOOK, {**given, "idle_ms": one.held_ms - one.switch_ms - busy_ms})).first()
    return row is not None


_share = Rows("share", accelerator=Text, epoch=BigInteger, task=Text, tenant=Text, ms=BigInteger)
_SHARES = Statement(
    insert(slice_shares).from_select(
        ["accelerator", "epoch", "task", "tenant", "ms"],
        select(_share.c.accelerator, _share.c.epoch, _share.c.task, _share.c.tenant, _share.c.ms),
    )
)


async def share(
    connection: AsyncConnection, accelerator: str, epoch: int, ms_by_task: Mapping[str, int], tenants: Mapping[str, str]
) -> None:
    """Insert the payers of a slice that was just booked. `tenants`: by task; NO_TASK has no tenant and pays nothing."""
    rows = [(accelerator, epoch, task, tenants.get(task), ms) for task, ms in sorted(ms_by_task.items()) if ms]
    if rows:
        await _SHARES.run(connection, _share.of(rows))


_FORGET = text("""
WITH kept AS MATERIALIZED (
    SELECT a.id AS accelerator, least(
        (SELECT max(m.epoch) FROM slices m WHERE m.accelerator = a.id),
        (SELECT min(k.epoch) FROM slices k WHERE k.accelerator = a.id AND (
            k.booked_at IS NULL OR k.ended_at > now() - make_interval(days => :days)))) AS first
    FROM accelerators a),
old AS MATERIALIZED (
    SELECT s.accelerator, s.epoch FROM kept JOIN slices s ON s.accelerator = kept.accelerator AND s.epoch < kept.first
    ORDER BY s.accelerator, s.epoch LIMIT :most)
DELETE FROM slices s USING old WHERE s.accelerator = old.accelerator AND s.epoch = old.epoch RETURNING s.number
""")


async def forget(connection: AsyncConnection, days: int, most: int) -> int:
    """Delete each accelerator's oldest slices with their shares, if booked and ended over `days` ago; returns the number, at most `most`.

    The remaining slices have no gaps, and include each accelerator's newest. The ledger keeps their costs.
    """
    return len((await connection.execute(_FORGET, {"days": days, "most": most})).all())
