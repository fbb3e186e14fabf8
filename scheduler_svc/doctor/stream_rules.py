"""Rules about what NATS holds, against what PostgreSQL says."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import Bus, Delivery
from common.errors import Reject
from common.messages import AdapterRef, DeadLetter, Settlement, TaskStatus, WeightUpdated, from_json
from scheduler_svc.doctor.violation import Violation
from scheduler_svc.handlers.dead_letters import concerns_dead_letter
from scheduler_svc.store.states import TaskState, TrajectoryState
from scheduler_svc.store.tables import dead_letters, steps, tasks, trajectories

READS_AT_ONCE = 32

ORPHANS = "every message on its way is about a task that has not ended"
SCORES = "the message of every scored trajectory is stored, and is about it"
WEIGHTS = "what weight-updated says of a version is what its step says"
ANNOUNCED = "a live task's latest version is announced"
STATUS = "the status that users read is the task's"
LETTERS = "every dead letter is on record"
DELETED = "nothing announces a deleted task"
RULES = (ORPHANS, SCORES, WEIGHTS, ANNOUNCED, STATUS, LETTERS, DELETED)


@dataclass(frozen=True)
class Told:
    """What PostgreSQL says that NATS must agree with."""

    tasks: dict[str, tuple[str, int, str]]
    """Task → state, version, pool."""
    in_use: set[str]
    """Tasks that have not ended, or whose messages the scheduler may still be about to delete."""
    scored: list[tuple[str, int, int, int]]
    """(task, group, member, sequence) of every scored trajectory."""
    adapters: dict[tuple[str, int], AdapterRef]
    """(task, version) → adapter of every trained step."""
    letters: set[int]
    deleted: set[str]
    """Tasks that were deleted, and of which NATS was found empty."""


async def read_told(connection: AsyncConnection, grace_s: float) -> Told:
    """`grace_s`: how long after a task's end its messages may still be there."""
    in_use = text("SELECT id FROM tasks WHERE ended_at IS NULL OR ended_at > now() - make_interval(secs => :grace_s)")
    deleted = text("SELECT id FROM deleted_tasks WHERE freed_bytes IS NOT NULL AND deleted_at <= now() - make_interval(secs => :grace_s)")
    scored = select(trajectories.c.task, trajectories.c.group, trajectories.c.member, trajectories.c.sequence)
    trained = select(steps.c.task, steps.c.version, steps.c.adapter).where(steps.c.adapter.is_not(None))
    rows = (await connection.execute(select(tasks.c.id, tasks.c.state, tasks.c.version, tasks.c.pool))).all()
    return Told(
        tasks={row.id: (row.state, row.version, row.pool) for row in rows},
        in_use=set((await connection.execute(in_use, {"grace_s": grace_s})).scalars()),
        scored=[tuple(row) for row in (await connection.execute(scored.where(trajectories.c.state == TrajectoryState.SCORED))).all()],
        adapters={(row.task, row.version + 1): from_json(AdapterRef, row.adapter) for row in (await connection.execute(trained)).all()},
        letters=set((await connection.execute(select(dead_letters.c.sequence))).scalars()),
        deleted=set((await connection.execute(deleted, {"grace_s": grace_s})).scalars()),
    )


async def examine_messages(bus: Bus, told: Told) -> list[Violation]:
    """Raises: Retry when NATS is away."""
    parts: Sequence[list[Violation]] = [
        await _orphans(bus, told),
        await _scores(bus, told),
        await _weights(bus, told),
        await _statuses(bus, told),
        await _letters(bus, told),
        await _deleted(bus, told),
    ]
    return [finding for part in parts for finding in part]


async def _orphans(bus: Bus, told: Told) -> list[Violation]:
    found: list[Violation] = []
    for stream in streams.IN_FLIGHT:
        for subject, count in sorted((await bus.streams.subjects(stream)).items()):
            task = streams.task_of(subject)
            if task not in told.in_use:
                state = told.tasks[task][0] if task in told.tasks else "unknown"
                found.append(Violation(ORPHANS, f"stream={stream.name} subject={subject} messages={count} task_state={state}"))
    return found


async def _scores(bus: Bus, told: Told) -> list[Violation]:
    bound = asyncio.Semaphore(READS_AT_ONCE)

    async def problem(task: str, group: int, member: int, sequence: int) -> str | None:
        async with bound:
            try:
                stored = await bus.streams.read(streams.SCORED, sequence)
            except LookupError:
                return "the message is gone"
        settled = Settlement.model_validate_json(stored.headers.get(streams.SETTLEMENT_HEADER, "null"))
        about = {(settled.task, settled.group, one.member) for one in settled.members}
        return None if (task, group, member) in about else f"the message is about {sorted(about)}"

    problems = await asyncio.gather(*(problem(*row) for row in told.scored))
    return [
        Violation(SCORES, f"task={task} group={group} member={member} sequence={sequence}: {problem}")
        for (task, group, member, sequence), problem in zip(told.scored, problems, strict=True)
        if problem
    ]


async def _weights(bus: Bus, told: Told) -> list[Violation]:
    found: list[Violation] = []
    for task, (state, version, pool) in told.tasks.items():
        if version == 0:
            continue
        announced = [delivery async for delivery in bus.streams.stored(streams.WEIGHTS, streams.weight_updated(pool, task))]
        updates = [update for update in map(_update, announced) if update is not None and update.task == task]
        first: dict[int, WeightUpdated] = {}
        for update in updates:
            first.setdefault(update.version, update)
        found += [
            Violation(WEIGHTS, f"task={task} version={number} announced={update.adapter.blob.name} of_step={adapter.blob.name}")
            for number, update in first.items()
            if (adapter := told.adapters.get((task, number))) is not None and adapter.blob.sha256 != update.adapter.blob.sha256
        ]
        if state in (TaskState.RUNNING, TaskState.PAUSED) and version not in first:
            found.append(Violation(ANNOUNCED, f"task={task} version={version} announced={sorted(first)}"))
    return found


def _update(delivery: Delivery) -> WeightUpdated | None:
    try:
        return delivery.read(WeightUpdated)
    except Reject:  # not ours: it is a dead letter as well
        return None


async def _statuses(bus: Bus, told: Told) -> list[Violation]:
    said = {status.task: status for status in await bus.kv.values(streams.TASKS_BUCKET, TaskStatus)}
    found: list[Violation] = []
    for task, (state, version, _) in told.tasks.items():
        status = said.get(task)
        if status is None or (status.state, status.version) != (state, version):
            shown = f"{status.state} at {status.version}" if status else "nothing"
            found.append(Violation(STATUS, f"task={task} state={state} version={version}: users read {shown}"))
    return found


async def _deleted(bus: Bus, told: Told) -> list[Violation]:
    """What a trainer announced after its task was deleted the sweep finds; a status that is left nothing would ever correct."""
    announced = await bus.streams.subjects(streams.WEIGHTS) if told.deleted else {}
    statuses = await bus.kv.values(streams.TASKS_BUCKET, TaskStatus) if told.deleted else []
    found = [
        Violation(DELETED, f"stream=WEIGHTS subject={subject} messages={count}")
        for subject, count in sorted(announced.items())
        if streams.token(subject, 2) in told.deleted
    ]
    return found + [
        Violation(DELETED, f"task={status.task}: users read {status.state}") for status in statuses if status.task in told.deleted
    ]


async def _letters(bus: Bus, told: Told) -> list[Violation]:
    """What the scheduler could not read, or could not put on record, is a letter about a letter: nobody records those."""
    return [
        Violation(LETTERS, f"stream=FAILED sequence={letter.sequence} subject={letter.subject}")
        async for letter in bus.streams.stored(streams.FAILED, "failed.>")
        if letter.sequence not in told.letters and _is_readable(letter) and not concerns_dead_letter(letter)
    ]


def _is_readable(letter: Delivery) -> bool:
    try:
        letter.read(DeadLetter)
    except Reject:
        return False
    return True
