"""Queries on homes of tasks, and on replicas that have names and queues of their own: those of `executors`.

Without a pool that has several none of them runs a statement.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.prompts import FIRST_EVALUATION_GROUP
from scheduler_svc.training.queries.tasks import Home, Task, homes_of


class Replica(NamedTuple):
    service: str
    pool: str
    name: str


_READY = text("SELECT service, pool, accelerator FROM executors WHERE has_queue AND faults = 0 AND (held IS NULL OR held = 'wake')")


async def ready_replicas(connection: AsyncConnection) -> set[Replica]:
    """Those that read a queue of their own, are not faulty, and are held by no operator."""
    return {Replica(*row) for row in (await connection.execute(_READY)).all()}


_NOTE = text("""
UPDATE executors SET has_queue = NOT has_queue WHERE has_queue <> ((service, pool, accelerator) IN (
    SELECT * FROM unnest(CAST(:services AS text[]), CAST(:pools AS text[]), CAST(:names AS text[]))))
""")


async def note_readers(connection: AsyncConnection, reading: Collection[Replica]) -> None:
    """Write which replicas read queues of their own: `reading`, and no others."""
    services, pools, names = zip(*sorted(reading), strict=True) if reading else ((), (), ())
    await connection.execute(_NOTE, {"services": [*services], "pools": [*pools], "names": [*names]})


async def reachable_homes(connection: AsyncConnection, tasks: Collection[Task], service: str) -> dict[str, str]:
    """Homes of tasks for work of each one's present version; left out are those without one, and those whose home is not ready."""
    homes = {task.id: Replica(service, task.spec.pool, name) for task in tasks if (name := _home(task, service)) is not None}
    ready = await ready_replicas(connection) if homes else set[Replica]()
    return {task: home.name for task, home in homes.items() if home in ready}


def _home(task: Task, service: str) -> str | None:
    home = task.homes.get(service)
    return home.at(task.version) if home is not None else None


async def has_lock(connection: AsyncConnection, lock: int) -> bool:
    """Take the advisory lock until the transaction ends; False where another transaction holds it."""
    return bool((await connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock})).scalar_one())


@dataclass(frozen=True)
class LiveTask:
    """A running task, or one that is about to run."""

    task: str
    pool: str
    version: int
    steps_left: int
    homes: Mapping[str, Home]
    adapter_bytes: int
    checkpoint_bytes: int
    restore_s: float
    """Seconds in which its state was restored, the longest of its latest steps; about 0 where none was."""


_LIVE = text("""
SELECT t.id, t.pool, t.version, t.steps, t.homes, coalesce((t.adapter -> 'blob' ->> 'size_bytes')::bigint, 0) AS adapter_bytes,
       coalesce((t.checkpoint ->> 'size_bytes')::bigint, 0) AS checkpoint_bytes,
       coalesce((SELECT max((s.metrics ->> 'restore_s')::float8) FROM steps s
                 WHERE s.task = t.id AND s.state = 'trained' AND s.version >= t.version - :most), 0) AS restore_s
FROM tasks t WHERE t.state IN ('submitted', 'running') AND t.pool = ANY(CAST(:pools AS text[])) ORDER BY t.id
""")


async def live_tasks(connection: AsyncConnection, pools: Collection[str], most: int) -> list[LiveTask]:
    """`most`: latest steps that count."""
    rows = (await connection.execute(_LIVE, {"pools": sorted(pools), "most": most})).all()
    return [
        LiveTask(
            *(row.id, row.pool, row.version, max(1, row.steps - row.version), homes_of(row.homes)),
            *(row.adapter_bytes, row.checkpoint_bytes, float(row.restore_s)),
        )
        for row in rows
    ]


_HOMELESS = text("""
SELECT EXISTS (SELECT FROM tasks t JOIN unnest(CAST(:services AS text[]), CAST(:pools AS text[])) k (service, pool) ON k.pool = t.pool
               WHERE t.state IN ('submitted', 'running') AND (t.homes -> k.service) IS NULL)
""")


async def any_homeless(connection: AsyncConnection, keys: Collection[tuple[str, str]]) -> bool:
    """Whether a task has no home yet. `keys`: services and pools with several replicas."""
    given = {"services": [service for service, _ in keys], "pools": [pool for _, pool in keys]}
    return bool((await connection.execute(_HOMELESS, given)).scalar_one())


# A version whose work has begun elsewhere ends there: groups pin their version, and a step's batch is in one queue.
_SETTLE = text(f"""
UPDATE tasks t SET homes = coalesce(t.homes, '{{}}') || jsonb_build_object(CAST(:service AS text), jsonb_build_object(
    'replica', CAST(:replica AS text),
    'version', t.version + CASE WHEN CAST(:service AS text) = 'trainer'
        THEN EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.version = t.version)::int
        ELSE coalesce((SELECT g.version = t.version FROM groups g WHERE g.task = t.id AND g.number < {FIRST_EVALUATION_GROUP}
                       ORDER BY g.number DESC LIMIT 1)::int, 0) END,
    'before', CASE WHEN (t.homes -> CAST(:service AS text) ->> 'version')::int > t.version
                   THEN t.homes -> CAST(:service AS text) ->> 'before' ELSE t.homes -> CAST(:service AS text) ->> 'replica' END,
    'since_s', CAST(:now_s AS float8)))
WHERE t.id = :task AND t.state IN ('submitted', 'running') RETURNING t.homes
""")


async def settle(connection: AsyncConnection, task: str, service: str, replica: str, now_s: float) -> Home | None:
    """Give a task another home, from its present version where none of that's work was sent, else from the next.

    None: it has ended.
    """
    given = {"task": task, "service": service, "replica": replica, "now_s": now_s}
    row = (await connection.execute(_SETTLE, given)).first()
    return homes_of(row.homes)[service] if row is not None else None
