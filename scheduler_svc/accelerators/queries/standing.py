"""Queries on how things stand: executors with their newest slices, which the leader decides by."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import ExecutorState, Function, Tier
from scheduler_svc.base.states import Hold


@dataclass(frozen=True)
class NewestSlice:
    """The newest slice of an executor."""

    epoch: int
    function: Function
    expected_s: float
    """Of the switch to it."""
    ordered_ms: int
    awake_ms: int | None
    ended_ms: int | None
    """None while it is open."""


@dataclass(frozen=True)
class ExecutorRow:
    """A row of `executors`."""

    accelerator: str
    executor: str
    pool: str
    service: str
    state: ExecutorState
    tier: Tier
    device_bytes: int
    host_bytes: int
    fault: str | None
    faults: int
    retry_ms: int | None
    needs_room: bool
    held: Hold | None
    measured: Tier | None
    """Where it is parked once it is awake, before it is woken again, so that these moves are measured."""
    newest: NewestSlice | None
    has_unbooked: bool
    """Whether one of its slices has ended and is not booked."""

    @property
    def is_held(self) -> bool:
        """Whether an operator ordered it to park."""
        return self.held in (Hold.PARK, Hold.DRAIN)

    @property
    def function(self) -> Function:
        """What it usually computes."""
        return Function.GENERATE if self.service == "rollout" else Function.TRAIN


@dataclass(frozen=True)
class AcceleratorState:
    """An accelerator with its executors, as PostgreSQL has them."""

    accelerator: str
    epoch: int
    """Of the newest order."""
    executors: tuple[ExecutorRow, ...]
    moved_ms: int | None
    """When the latest switch was done that moved state to the device; None before the first."""
    moved_in_ms: int
    """Milliseconds that it took."""

    @property
    def holder(self) -> ExecutorRow | None:
        """The executor with the open slice."""
        return next((one for one in self.executors if one.newest is not None and one.newest.ended_ms is None), None)

    @property
    def slice(self) -> NewestSlice | None:
        """The open slice."""
        return None if self.holder is None else self.holder.newest


_MS = "(extract(epoch FROM {0}) * 1000)::bigint"
_EXECUTORS = text(f"""
SELECT e.accelerator, e.id, e.pool, e.service, e.state, e.tier, e.device_bytes, e.host_bytes, e.fault, e.faults,
       {_MS.format("e.retry_at")} AS retry_ms, e.needs_room, e.held,
       CASE WHEN e.held = 'wake' THEN e.measured END AS measured, s.epoch, s.function, s.expected_s,
       {_MS.format("s.ordered_at")} AS ordered_ms, {_MS.format("s.awake_at")} AS awake_ms, {_MS.format("s.ended_at")} AS ended_ms,
       EXISTS (SELECT FROM slices u WHERE u.accelerator = e.accelerator AND u.executor = e.id AND u.booked_at IS NULL
               AND u.ended_at IS NOT NULL) AS has_unbooked
FROM executors e LEFT JOIN LATERAL (
    SELECT * FROM slices s WHERE s.accelerator = e.accelerator AND s.executor = e.id ORDER BY s.epoch DESC LIMIT 1) s ON true
WHERE e.accelerator = ANY(CAST(:names AS text[])) ORDER BY e.accelerator, e.id
""")
_ACCELERATORS = text(f"""
SELECT a.id, a.epoch, {_MS.format("m.awake_at")} AS moved_ms, {_MS.format("m.awake_at - m.ordered_at")} AS moved_in_ms
FROM accelerators a
LEFT JOIN LATERAL (SELECT awake_at, ordered_at FROM slices s WHERE s.accelerator = a.id AND s.from_tier <> 'device'
                   AND s.awake_at IS NOT NULL ORDER BY s.epoch DESC LIMIT 1) m ON true
WHERE a.id = ANY(CAST(:names AS text[])) ORDER BY a.id
""")


async def standings(connection: AsyncConnection, names: Collection[str]) -> dict[str, AcceleratorState]:
    """By accelerator. Without a lock, so what is decided by them must be compared with the rows that are locked then."""
    given = {"names": sorted(names)}
    executors: dict[str, list[ExecutorRow]] = {name: [] for name in names}
    for row in (await connection.execute(_EXECUTORS, given)).all():
        newest = None
        if row.epoch is not None:
            newest = NewestSlice(row.epoch, Function(row.function), row.expected_s, row.ordered_ms, row.awake_ms, row.ended_ms)
        executors[row.accelerator].append(
            ExecutorRow(
                *(row.accelerator, row.id, row.pool, row.service),
                ExecutorState(row.state),
                Tier(row.tier),
                *(row.device_bytes, row.host_bytes, row.fault, row.faults, row.retry_ms, row.needs_room),
                Hold(row.held) if row.held is not None else None,
                Tier(row.measured) if row.measured is not None else None,
                newest,
                row.has_unbooked,
            )
        )
    return {
        row.id: AcceleratorState(row.id, row.epoch, tuple(executors[row.id]), row.moved_ms, row.moved_in_ms or 0)
        for row in (await connection.execute(_ACCELERATORS, given)).all()
    }
