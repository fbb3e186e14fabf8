"""Queries on homes of tasks, in pools that are on several shared accelerators. Without such a pool none of them runs a statement."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import executor_name
from common.group_numbers import FIRST_EVALUATION_GROUP
from scheduler_svc.store.queries.training.tasks import Home, Task, homes_of

Key = tuple[str, str]
"""Accelerator and executor."""

_CAN_WORK = "has_queue AND faults = 0 AND (held IS NULL OR held = 'wake')"
_REACHABLE = text(f"""
SELECT accelerator, id FROM executors
WHERE {_CAN_WORK} AND (accelerator, id) IN (SELECT * FROM unnest(CAST(:accelerators AS text[]), CAST(:ids AS text[])))
""")


async def reachable_homes(connection: AsyncConnection, tasks: Collection[Task], service: str) -> dict[str, str]:
    """Accelerators by task, for work of each one's present version; left out are tasks without a home, or whose home cannot work now:
    no process reads its queue, it is faulty, or an operator holds it."""
    homes = {task.id: (home, executor_name(service, task.spec.pool)) for task in tasks if (home := _home(task, service)) is not None}
    if not homes:
        return {}
    found = {(row.accelerator, row.id) for row in (await connection.execute(_REACHABLE, _arrays(set(homes.values())))).all()}
    return {task: key[0] for task, key in homes.items() if key in found}


def _home(task: Task, service: str) -> str | None:
    home = task.homes.get(service)
    return home.at(task.version) if home is not None else None


_WORKING = text(f"SELECT accelerator, id FROM executors WHERE {_CAN_WORK}")


async def working_executors(connection: AsyncConnection) -> set[Key]:
    """Executors that read queues of their own and may work."""
    return {(row.accelerator, row.id) for row in (await connection.execute(_WORKING)).all()}


_NOTE = text("""
UPDATE executors SET has_queue = NOT has_queue
WHERE has_queue <> ((accelerator, id) IN (SELECT * FROM unnest(CAST(:accelerators AS text[]), CAST(:ids AS text[]))))
""")


async def note_queues(connection: AsyncConnection, reading: Collection[Key]) -> None:
    """Write which executors read queues of their own: `reading`, and no others."""
    await connection.execute(_NOTE, _arrays(reading))


def _arrays(keys: Collection[Key]) -> dict[str, list[str]]:
    ordered = sorted(keys)
    return {"accelerators": [accelerator for accelerator, _ in ordered], "ids": [executor for _, executor in ordered]}


async def has_lock(connection: AsyncConnection, lock: int) -> bool:
    """Take the advisory lock until the transaction ends; False where another transaction holds it."""
    return bool((await connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": lock})).scalar_one())


@dataclass(frozen=True)
class Resident:
    """A running task, or one that is about to run, of a pool with executors on shared accelerators."""

    task: str
    tenant: str
    pool: str
    version: int
    steps_left: int
    homes: Mapping[str, Home]
    adapter_bytes: int
    checkpoint_bytes: int
    restore_s: float
    """Seconds in which its state was restored, the longest of its latest steps; about 0 where none was."""


_RESIDENTS = text("""
SELECT t.id, t.tenant, t.pool, t.version, t.steps, t.homes, coalesce((t.adapter -> 'blob' ->> 'size_bytes')::bigint, 0) AS adapter_bytes,
       coalesce((t.checkpoint ->> 'size_bytes')::bigint, 0) AS checkpoint_bytes,
       coalesce((SELECT max((s.metrics ->> 'restore_s')::float8) FROM steps s
                 WHERE s.task = t.id AND s.state = 'trained' AND s.version >= t.version - :most), 0) AS restore_s
FROM tasks t WHERE t.state IN ('submitted', 'running') AND t.pool = ANY(CAST(:pools AS text[])) ORDER BY t.id
""")


async def residents(connection: AsyncConnection, pools: Collection[str], most: int) -> list[Resident]:
    """`most`: latest steps that count."""
    rows = (await connection.execute(_RESIDENTS, {"pools": sorted(pools), "most": most})).all()
    return [
        Resident(
            *(row.id, row.tenant, row.pool, row.version, max(1, row.steps - row.version)),
            homes_of(row.homes),
            *(row.adapter_bytes, row.checkpoint_bytes, float(row.restore_s)),
        )
        for row in rows
    ]


_HOMELESS = text("""
SELECT EXISTS (SELECT FROM tasks t JOIN unnest(CAST(:services AS text[]), CAST(:pools AS text[])) k (service, pool) ON k.pool = t.pool
               WHERE t.state IN ('submitted', 'running') AND (t.homes -> k.service) IS NULL)
""")


async def any_homeless(connection: AsyncConnection, keys: Collection[tuple[str, str]]) -> bool:
    """Whether a task has no home yet. `keys`: services and pools that are on several accelerators."""
    given = {"services": [service for service, _ in keys], "pools": [pool for _, pool in keys]}
    return bool((await connection.execute(_HOMELESS, given)).scalar_one())


# A version whose work has begun elsewhere ends there: groups pin their version, and a step's batch is in one queue.
_SETTLE = text(f"""
UPDATE tasks t SET homes = coalesce(t.homes, '{{}}') || jsonb_build_object(CAST(:service AS text), jsonb_build_object(
    'accelerator', CAST(:accelerator AS text),
    'version', t.version + CASE WHEN CAST(:service AS text) = 'trainer'
        THEN EXISTS (SELECT FROM steps s WHERE s.task = t.id AND s.version = t.version)::int
        ELSE coalesce((SELECT g.version = t.version FROM groups g WHERE g.task = t.id AND g.number < {FIRST_EVALUATION_GROUP}
                       ORDER BY g.number DESC LIMIT 1)::int, 0) END,
    'before', CASE WHEN (t.homes -> CAST(:service AS text) ->> 'version')::int > t.version
                   THEN t.homes -> CAST(:service AS text) ->> 'before' ELSE t.homes -> CAST(:service AS text) ->> 'accelerator' END,
    'since_s', CAST(:now_s AS float8)))
WHERE t.id = :task AND t.state IN ('submitted', 'running')
RETURNING (t.homes -> CAST(:service AS text) ->> 'version')::int AS version, t.homes -> CAST(:service AS text) ->> 'before' AS before
""")


@dataclass(frozen=True)
class Settled:
    version: int
    """From which the home holds."""
    before: str | None


async def settle(connection: AsyncConnection, task: str, service: str, accelerator: str, now_s: float) -> Settled | None:
    """Give a task another home, from its present version where none of that's work was sent, else from the next.

    None: it has ended.
    """
    given = {"task": task, "service": service, "accelerator": accelerator, "now_s": now_s}
    row = (await connection.execute(_SETTLE, given)).first()
    return Settled(row.version, row.before) if row is not None else None
