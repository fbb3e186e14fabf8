"""Queries on the state that the leader decides by: executors with their newest slices, and tasks and tenants with work."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import ExecutorState, Function, Tier
from scheduler_svc.accelerators.decisions.situation import WINDOW_S
from scheduler_svc.base.states import Hold


@dataclass(frozen=True)
class NewestSlice:
    """The newest slice of an executor."""

    epoch: int
    function: Function
    expected_s: float
    """Expected seconds of the switch to the slice."""
    ordered_ms: int
    awake_ms: int | None
    ended_ms: int | None
    """End in Unix milliseconds; None while the slice is open."""


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
    """Tier whose moves are being measured: the executor wakes, parks in this tier, and wakes a second time. None: no measurement."""
    newest: NewestSlice | None
    has_unbooked: bool
    """Whether an ended slice of the executor is not booked yet."""

    @property
    def is_held(self) -> bool:
        """Whether an operator ordered the executor to park."""
        return self.held in (Hold.PARK, Hold.DRAIN)

    @property
    def function(self) -> Function:
        """Function that the executor's service performs by default: `GENERATE` for rollout, else `TRAIN`."""
        return Function.GENERATE if self.service == "rollout" else Function.TRAIN


@dataclass(frozen=True)
class AcceleratorState:
    """An accelerator with its executors, as recorded in PostgreSQL."""

    accelerator: str
    epoch: int
    """Epoch of the newest order."""
    executors: tuple[ExecutorRow, ...]
    moved_ms: int | None
    """Unix milliseconds at the end of the latest switch that moved state to the device; None before the first."""
    moved_in_ms: int
    """Duration of the switch that ended at `moved_ms`, in milliseconds."""

    @property
    def holder(self) -> ExecutorRow | None:
        """The executor with the open slice; None if none is open."""
        return next((one for one in self.executors if one.newest is not None and one.newest.ended_ms is None), None)

    @property
    def slice(self) -> NewestSlice | None:
        """The open slice; None if none is open."""
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
    """State by accelerator. Read without locks, so a decision by it must be checked against the rows once they are locked."""
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
    """Tasks of the pool with open groups, or, for training and scoring, with a step at the trainer."""
    statement = _OF_SAMPLER if function is Function.GENERATE else _OF_TRAINER
    return list((await connection.execute(statement, {"pool": pool})).scalars())


_PAYERS = text("SELECT id, tenant FROM tasks WHERE pool = :pool AND id = ANY(CAST(:ids AS text[])) ORDER BY id FOR UPDATE")
_FORMER = text("SELECT id, tenant FROM deleted_tasks WHERE id = ANY(CAST(:ids AS text[]))")


@dataclass(frozen=True)
class Payers:
    """Tenant by task, for tasks that pay for a slice."""

    present: dict[str, str]
    """Existing tasks of the pool, locked."""
    deleted: dict[str, str]

    @property
    def tenants(self) -> dict[str, str]:
        return self.deleted | self.present


async def lock_payers(connection: AsyncConnection, pool: str, ids: Collection[str]) -> Payers:
    """Lock the pool's tasks among `ids` until the transaction ends; returns these tasks, and the deleted tasks among `ids`."""
    present = {row.id: row.tenant for row in (await connection.execute(_PAYERS, {"pool": pool, "ids": sorted(ids)})).all()}
    missing = sorted(set(ids) - set(present))
    rows = (await connection.execute(_FORMER, {"ids": missing})).all() if missing else []
    return Payers(present, {row.id: row.tenant for row in rows})


@dataclass(frozen=True)
class Running:
    """A tenant's running tasks in a pool."""

    pool: str
    tenant: str
    weight: float
    has_batch: bool
    """Whether one of the tasks has a batch at the trainer."""


_RUNNING = text("""
SELECT t.pool, t.tenant, n.weight, bool_or(EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.state = 'batched')) AS has_batch
FROM tasks t JOIN tenants n ON n.id = t.tenant
WHERE t.state = 'running' AND t.pool = ANY(CAST(:pools AS text[])) GROUP BY t.pool, t.tenant, n.weight ORDER BY t.pool, t.tenant
""")


async def running_tenants(connection: AsyncConnection, pools: Collection[str]) -> list[Running]:
    """Tenants with running tasks, by pool."""
    rows = (await connection.execute(_RUNNING, {"pools": sorted(pools)})).all()
    return [Running(row.pool, row.tenant, float(row.weight), row.has_batch) for row in rows]


@dataclass(frozen=True)
class Booked:
    """Accelerator time within the fairness window, for one pool."""

    accelerator: str
    tenant: str | None
    """Tenant to which the time is booked; None: time of slices that are not booked yet, including the one in progress."""
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
    """Time within WINDOW_S, booked to tenants or not booked yet. `now_s`: NATS time.

    A single statement, so that a slice that is booked concurrently counts once.
    """
    given = {"names": sorted(names), "pools": sorted(pools), "now_s": now_s, "since_s": now_s - WINDOW_S}
    return [Booked(*row) for row in (await connection.execute(_BOOKED, given)).all()]
