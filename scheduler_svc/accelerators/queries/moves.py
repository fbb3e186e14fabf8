"""Queries on measured moves between tiers."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.accelerators import Tier
from common.messages import LeaseDone

_ADD = text("""
INSERT INTO moves (accelerator, executor, epoch, from_tier, to_tier, bytes, freed_bytes, seconds)
VALUES (:accelerator, :executor, :epoch, :from_tier, :to_tier, :bytes, :freed, :seconds)
""")


async def add(connection: AsyncConnection, done: LeaseDone, seconds: float) -> None:
    row = {"accelerator": done.accelerator, "executor": done.executor, "epoch": done.epoch, "seconds": seconds}
    tiers = {"from_tier": done.from_tier.value, "to_tier": done.tier.value}
    await connection.execute(_ADD, {**row, **tiers, "bytes": done.device_bytes, "freed": done.freed_bytes})


@dataclass(frozen=True)
class MeasuredMove:
    """A measured move."""

    id: int
    accelerator: str
    executor: str
    from_tier: Tier
    to_tier: Tier
    seconds: float


_NEWEST = text("""
SELECT id, accelerator, executor, from_tier, to_tier, seconds FROM (
    SELECT *, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place
    FROM moves WHERE id > :after AND accelerator = ANY(CAST(:names AS text[]))) m
WHERE place <= :most ORDER BY id
""")


async def newest(connection: AsyncConnection, names: Collection[str], most: int, *, after: int = 0) -> list[MeasuredMove]:
    """The newest moves of each kind, `most` at most, the oldest first. `after`: only those with a higher id."""
    rows = (await connection.execute(_NEWEST, {"after": after, "names": sorted(names), "most": most})).all()
    return [MeasuredMove(row.id, row.accelerator, row.executor, Tier(row.from_tier), Tier(row.to_tier), row.seconds) for row in rows]


_FORGET = text("""
DELETE FROM moves WHERE id IN (
    SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place
                    FROM moves) m WHERE place > :most)
""")


async def forget(connection: AsyncConnection, most: int) -> None:
    """Delete all but the newest `most` of each kind."""
    await connection.execute(_FORGET, {"most": most})
