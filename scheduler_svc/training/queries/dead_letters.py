"""Queries on dead letters: their record, and which were resent."""

from sqlalchemy import delete, func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import DeadLetter
from scheduler_svc.base.tables import dead_letters


async def forget_dead_letters(connection: AsyncConnection, *, after: int) -> None:
    """Delete records after sequence `after`, where the stream FAILED ends: NATS will reuse their numbers."""
    await connection.execute(delete(dead_letters).where(dead_letters.c.sequence > after))


async def record_dead_letter(connection: AsyncConnection, sequence: int, task: str | None, letter: DeadLetter) -> bool:
    """Record a dead letter; False when it was recorded before."""
    values = {
        "sequence": sequence,
        "stage": letter.stage,
        "task": task,
        "subject": letter.subject,
        "reason": letter.reason,
        "attempts": letter.attempts,
    }
    statement = insert(dead_letters).values(values).on_conflict_do_nothing().returning(dead_letters.c.id)
    return (await connection.execute(statement)).first() is not None


async def mark_resent(connection: AsyncConnection, sequence: int, by: int) -> bool:
    """Record that the job `by` resends a dead letter; False when it was resent already, or is unknown."""
    statement = (
        update(dead_letters)
        .where(dead_letters.c.sequence == sequence, dead_letters.c.resent_by.is_distinct_from(by))
        .values(resent_by=by, resent_at=func.now())
        .returning(dead_letters.c.id)
    )
    return (await connection.execute(statement)).first() is not None
