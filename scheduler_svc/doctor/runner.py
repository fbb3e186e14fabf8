"""All rules at once. What is found broken is looked at again: a change under way is not a fault."""

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
    """How strictly to look."""

    grace_s: float
    """The scheduler sweeps now and then: what is younger may still wait for it. 0: nothing may wait."""
    deep: bool
    """Read every blob and compare its digest."""
    second_look_s: float = 3.0
    """Between the two looks at what is broken."""


async def examine(database: Database, bus: Bus, depth: Depth) -> list[Violation]:
    """What is wrong, and still is a moment later. Raises: Retry when PostgreSQL or NATS is away."""
    found = await _look(database, bus, depth)
    if not found:
        return []
    await asyncio.sleep(depth.second_look_s)
    still = {(finding.rule, _identity(finding)) for finding in await _look(database, bus, depth)}
    return sorted(finding for finding in found if (finding.rule, _identity(finding)) in still)


def _identity(finding: Violation) -> str:
    """The row without what grows by itself."""
    return finding.where.partition(" age_s=")[0]


async def _look(database: Database, bus: Bus, depth: Depth) -> list[Violation]:
    async with database.transaction() as tx:
        await tx.connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        found = await database_rules.examine_record(tx.connection)
        told = await stream_rules.read_told(tx.connection, depth.grace_s)
        needed = await blob_rules.read_needed(tx.connection)
    found += await stream_rules.examine_messages(bus, told)
    return found + await blob_rules.examine_blobs(bus, needed, grace_s=depth.grace_s, deep=depth.deep)
