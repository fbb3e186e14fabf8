"""Rules that compare NATS's streams and status bucket with PostgreSQL."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus, Delivery
from common.errors import Reject
from common.messages import (
    AdapterRef,
    DeadLetter,
    HttpKey,
    KnownAlias,
    ProcessLife,
    ReplicaReport,
    Settlement,
    StatusesRemoved,
    TaskStatus,
    WeightUpdated,
    from_json,
    trouble_of,
)
from common.messages.lives import LIVES
from scheduler_svc.base.states import TaskState, TrajectoryState
from scheduler_svc.base.tables import dead_letters, steps, tasks, trajectories
from scheduler_svc.doctor.violation import Violation
from scheduler_svc.tenancy.keys import RecordedHttpKey, http_keys, tenants_with_accounts
from scheduler_svc.training.aliases import find_aliases
from scheduler_svc.training.results.dead_letters import concerns_dead_letter
from scheduler_svc.upkeep.deletion import sweeps
from scheduler_svc.uploads import package_queries as packages

MAX_CONCURRENT_READS = 32

ORPHANS = "every message in flight is about a task that has not ended"
SCORES = "the message of every scored trajectory is stored, and is about it"
WEIGHTS = "weight-updated names the adapter of the version's step"
ANNOUNCED = "a live task's latest version is announced"
STATUS = "the status that users read is the task's"
LETTERS = "every dead letter is recorded"
DELETED = "no announcement or status of a deleted task is stored"
HTTP_KEYS = "gateways know exactly the valid HTTP keys"
ALIASES = "rollout replicas know exactly the existing aliases"
BOUNDS = "every stream and bucket is bounded as it is declared"
FAULTY = "no service is faulty: three deaths alike, and no minute of work since"
REFUSED = "NATS permits all that the running services do"
RULES = (ORPHANS, SCORES, WEIGHTS, ANNOUNCED, STATUS, LETTERS, DELETED, HTTP_KEYS, ALIASES, BOUNDS, FAULTY, REFUSED)


@dataclass(frozen=True)
class Recorded:
    """Rows of PostgreSQL that NATS must be consistent with."""

    tasks: dict[str, tuple[str, int, str]]
    """Task → state, version, pool."""
    ended_s: dict[str, float]
    """Task → Unix time of its end."""
    in_use: set[str]
    """Tasks that have not ended, or ended so recently that the scheduler may not have deleted their messages yet."""
    in_check: set[tuple[str, str]]
    """(tenant, digest) of the packages whose check is pending."""
    scored: list[tuple[str, int, int, int]]
    """(task, group, member, sequence) of every scored trajectory."""
    adapters: dict[tuple[str, int], AdapterRef]
    """(task, version) → adapter of every trained step."""
    letters: set[int]
    """Sequences of the recorded dead letters."""
    deleted: set[str]
    """Deleted tasks whose data is recorded as erased from NATS."""
    http_keys: list[RecordedHttpKey]
    aliases: list[KnownAlias]
    with_keys: set[str]
    """Tenants that have accounts and are not deleted."""


async def read_recorded(connection: AsyncConnection, grace_s: float) -> Recorded:
    """Read the rows. `grace_s`: seconds after a task's end during which its messages may still be stored."""
    in_use = text("SELECT id FROM tasks WHERE ended_at IS NULL OR ended_at > now() - make_interval(secs => :grace_s)")
    deleted = text("SELECT id FROM deleted_tasks WHERE freed_bytes IS NOT NULL AND deleted_at <= now() - make_interval(secs => :grace_s)")
    scored = select(trajectories.c.task, trajectories.c.group, trajectories.c.member, trajectories.c.sequence)
    trained = select(steps.c.task, steps.c.version, steps.c.adapter).where(steps.c.adapter.is_not(None))
    rows = (await connection.execute(select(tasks.c.id, tasks.c.state, tasks.c.version, tasks.c.pool, tasks.c.ended_at))).all()
    return Recorded(
        tasks={row.id: (row.state, row.version, row.pool) for row in rows},
        ended_s={row.id: row.ended_at.timestamp() for row in rows if row.ended_at is not None},
        in_use=set((await connection.execute(in_use, {"grace_s": grace_s})).scalars()),
        in_check=await packages.in_check(connection),
        scored=[tuple(row) for row in (await connection.execute(scored.where(trajectories.c.state == TrajectoryState.SCORED))).all()],
        adapters={(row.task, row.version + 1): from_json(AdapterRef, row.adapter) for row in (await connection.execute(trained)).all()},
        letters=set((await connection.execute(select(dead_letters.c.sequence))).scalars()),
        deleted=set((await connection.execute(deleted, {"grace_s": grace_s})).scalars()),
        http_keys=await http_keys(connection),
        aliases=await find_aliases(connection),
        with_keys={tenant for tenant, is_deleted in (await tenants_with_accounts(connection)).items() if not is_deleted},
    )


async def examine_streams(bus: Bus, recorded: Recorded) -> list[Violation]:
    """Violations of this module's rules. Raises: Retry if NATS is unavailable."""
    parts: Sequence[list[Violation]] = [
        await _orphans(bus, recorded),
        await _scores(bus, recorded),
        await _weights(bus, recorded),
        await _statuses(bus, recorded),
        await _letters(bus, recorded),
        await _deleted(bus, recorded),
        await _http_keys(bus, recorded),
        await _aliases(bus, recorded),
        await _bounds(bus, recorded),
        await _faulty(bus),
        await _refused(bus),
    ]
    return [violation for part in parts for violation in part]


async def _orphans(bus: Bus, recorded: Recorded) -> list[Violation]:
    found: list[Violation] = []
    for stream in streams.IN_FLIGHT:
        for subject, count in sorted((await bus.streams.subjects(stream)).items()):
            task = streams.task_of(subject)
            if task not in recorded.in_use and streams.package_of(subject) not in recorded.in_check:
                state = recorded.tasks[task][0] if task in recorded.tasks else "unknown"
                found.append(Violation(ORPHANS, f"stream={stream.name} subject={subject} messages={count} task_state={state}"))
    return found


async def _scores(bus: Bus, recorded: Recorded) -> list[Violation]:
    bound = asyncio.Semaphore(MAX_CONCURRENT_READS)

    async def problem(task: str, group: int, member: int, sequence: int) -> str | None:
        async with bound:
            try:
                stored = await bus.streams.read(streams.SCORED, sequence)
            except LookupError:
                return "the message is gone"
        settled = Settlement.model_validate_json(stored.headers.get(streams.SETTLEMENT_HEADER, "null"))
        about = {(settled.task, settled.group, one.member) for one in settled.members}
        return None if (task, group, member) in about else f"the message is about {sorted(about)}"

    problems = await asyncio.gather(*(problem(*row) for row in recorded.scored))
    return [
        Violation(SCORES, f"task={task} group={group} member={member} sequence={sequence}: {problem}")
        for (task, group, member, sequence), problem in zip(recorded.scored, problems, strict=True)
        if problem
    ]


async def _weights(bus: Bus, recorded: Recorded) -> list[Violation]:
    found: list[Violation] = []
    for task, (state, version, pool) in recorded.tasks.items():
        if version == 0:
            continue
        announced = [delivery async for delivery in bus.streams.stored(streams.WEIGHTS, streams.weight_updated(pool, task))]
        updates = [update for update in map(_update, announced) if update is not None]
        first: dict[int, WeightUpdated] = {}
        for update in updates:
            first.setdefault(update.version, update)
        found += [
            Violation(WEIGHTS, f"task={task} version={number} announced={update.adapter.blob.name} of_step={adapter.blob.name}")
            for number, update in first.items()
            if (adapter := recorded.adapters.get((task, number))) is not None and adapter.blob.sha256 != update.adapter.blob.sha256
        ]
        if state in (TaskState.RUNNING, TaskState.PAUSED) and version not in first:
            found.append(Violation(ANNOUNCED, f"task={task} version={version} announced={sorted(first)}"))
    return found


def _update(delivery: Delivery) -> WeightUpdated | None:
    try:
        return delivery.read(WeightUpdated)
    except Reject:  # malformed, or about another task than its subject: also a dead letter
        return None


async def _statuses(bus: Bus, recorded: Recorded) -> list[Violation]:
    shown = {status.task: status for status in await bus.kv.values(streams.TASKS_BUCKET, TaskStatus)}
    removed = await bus.kv.get(streams.HISTORY_BUCKET, sweeps.STATUSES_KEY, StatusesRemoved)
    removable = {task for task, ended_s in recorded.ended_s.items() if removed is not None and ended_s <= removed.until_s}
    found: list[Violation] = []
    for task, (state, version, _) in recorded.tasks.items():
        status = shown.get(task)
        if status is None and task in removable:
            continue
        if status is None or (status.state, status.version) != (state, version):
            seen = f"{status.state} at {status.version}" if status else "nothing"
            found.append(Violation(STATUS, f"task={task} state={state} version={version}: users read {seen}"))
    return found


async def _deleted(bus: Bus, recorded: Recorded) -> list[Violation]:
    """Violations by deleted tasks' announcements, dead letters and samples that the sweep missed, and statuses, which no sweep deletes."""
    kept = (streams.WEIGHTS, streams.FAILED, streams.SAMPLES)
    reports = {stream.name: await bus.streams.subjects(stream) if recorded.deleted else {} for stream in kept}
    statuses = await bus.kv.values(streams.TASKS_BUCKET, TaskStatus) if recorded.deleted else []
    found = [
        Violation(DELETED, f"stream={name} subject={subject} messages={count}")
        for name, subjects in reports.items()
        for subject, count in sorted(subjects.items())
        if streams.token(subject, 2) in recorded.deleted
    ]
    return found + [
        Violation(DELETED, f"task={status.task}: users read {status.state}") for status in statuses if status.task in recorded.deleted
    ]


async def _http_keys(bus: Bus, recorded: Recorded) -> list[Violation]:
    """Violations by HTTP keys in the bucket; an expired key may be present or absent."""
    published = {value.digest: value for value in await bus.kv.values(streams.HTTP_KEYS_BUCKET, HttpKey)}
    now = datetime.now(UTC)
    valid = [each.value for each in recorded.http_keys if each.is_valid]
    wanted = {value.digest: value for value in valid if value.digest in published or value.ends is None or value.ends > now}
    return [
        Violation(HTTP_KEYS, f"digest={digest} valid={digest in wanted} published={digest in published}")
        for digest in sorted(published.keys() | wanted.keys())
        if published.get(digest) != wanted.get(digest)
    ]


async def _aliases(bus: Bus, recorded: Recorded) -> list[Violation]:
    published = {alias.key: alias for alias in await bus.kv.values(streams.ALIASES_BUCKET, KnownAlias)}
    wanted = {alias.key: alias for alias in recorded.aliases}
    return [
        Violation(ALIASES, f"alias={key} names={_named(wanted.get(key))} published={_named(published.get(key))}")
        for key in sorted(published.keys() | wanted.keys())
        if published.get(key) != wanted.get(key)
    ]


def _named(alias: KnownAlias | None) -> str:
    return alias.adapter.name if alias is not None else "nothing"


async def _bounds(bus: Bus, recorded: Recorded) -> list[Violation]:
    found = await bus.declarations.differences(streams.STREAMS, streams.BUCKETS)
    lost = sorted(recorded.with_keys - (await bus.own_jobs.waiting()).keys())
    found |= {streams.own_jobs(tenant).name: ["it is not there"] for tenant in lost}
    return [Violation(BOUNDS, f"stream={name}: {'; '.join(differences)}") for name, differences in found.items() if differences]


async def _faulty(bus: Bus) -> list[Violation]:
    lives = await bus.kv.values(streams.HISTORY_BUCKET, ProcessLife, LIVES)
    troubles = [trouble_of(life, bus.clock.now_s(), is_alive=True) for life in lives]
    return [Violation(FAULTY, trouble.sentence) for trouble in troubles if trouble is not None and trouble.state == "faulty"]


async def _refused(bus: Bus) -> list[Violation]:
    return [
        Violation(REFUSED, f"service={one.service} replica={one.replica} refusals={one.forbidden}: its log names them (nats_forbids)")
        for one in await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        if one.forbidden
    ]


async def _letters(bus: Bus, recorded: Recorded) -> list[Violation]:
    """Violations by unrecorded dead letters; undecodable letters and letters about letters are never recorded."""
    return [
        Violation(LETTERS, f"stream=FAILED sequence={letter.sequence} subject={letter.subject}")
        async for letter in bus.streams.stored(streams.FAILED, "failed.>")
        if letter.sequence not in recorded.letters
        and streams.token(letter.subject, 2) not in recorded.deleted
        and _is_readable(letter)
        and not concerns_dead_letter(letter)
    ]


def _is_readable(letter: Delivery) -> bool:
    try:
        letter.read(DeadLetter)
    except Reject:
        return False
    return True
