"""Checks all rules; violations must be found twice, as a transaction in flight is none."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import text

from common.bus import Bus
from scheduler_svc.doctor import blob_rules, database_rules, stream_rules
from scheduler_svc.doctor.violation import Violation
from scheduler_svc.store.database import Database

RULES = (*database_rules.RULES, *stream_rules.RULES, *blob_rules.RULES)


@dataclass(frozen=True)
class Depth:
    """Strictness of an examination."""

    grace_s: float
    """Age below which messages and blobs may still await the scheduler's periodic sweep; 0 accepts none."""
    deep: bool
    """Read every blob and compare its digest."""
    second_look_s: float = 3.0
    """Pause between the two examinations."""


async def examine(database: Database, bus: Bus, depth: Depth) -> list[Violation]:
    """Violations that persist for `second_look_s`. Raises: Retry when PostgreSQL or NATS is unavailable."""
    found = await _examine(database, bus, depth)
    if not found:
        return []
    await asyncio.sleep(depth.second_look_s)
    still = {(violation.rule, _identity(violation)) for violation in await _examine(database, bus, depth)}
    return sorted(violation for violation in found if (violation.rule, _identity(violation)) in still)


def _identity(violation: Violation) -> str:
    """The violation without its age, which grows."""
    return violation.where.partition(" age_s=")[0]


async def _examine(database: Database, bus: Bus, depth: Depth) -> list[Violation]:
    async with database.transaction() as tx:
        await tx.connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        found = await database_rules.examine_database(tx.connection)
        recorded = await stream_rules.read_recorded(tx.connection, depth.grace_s)
        needed = await blob_rules.read_needed(tx.connection)
    found += await stream_rules.examine_streams(bus, recorded)
    return found + await blob_rules.examine_blobs(bus, needed, grace_s=depth.grace_s, deep=depth.deep)
