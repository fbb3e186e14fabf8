"""Checkpoints without a state: the scheduler keeps what they are recomputed from, and no longer than they are kept."""

import pytest
from sqlalchemy import select

from common.bus import Bus
from scheduler_svc.maintenance.garbage_collector import needed_blobs, superseded_blobs
from scheduler_svc.store.queries import steps
from scheduler_svc.store.queries.tasks import find_task
from scheduler_svc.store.tables import stored_blobs
from tests.conftest import eventually
from tests.scheduler.maintenance.test_store_consistency import trained
from tests.scheduler.stages import Stages, World, running_world, spec

EVERY = 6


def since(version: int) -> int | None:
    """States are stored of versions 1, 7, 13, …"""
    return version - (version - 1) % EVERY if (version - 1) % EVERY else None


def everything(last: int) -> set[str]:
    """Checkpoints and batches of all versions."""
    recorded = {f"a/v{version}/batch" for version in range(1, last + 1) if since(version) is not None}
    return recorded | {f"a/v{version}/checkpoint" for version in range(1, last + 1)}


async def stored(world: World) -> set[str]:
    """As PostgreSQL counts it, without adapters."""
    async with world.database.transaction() as tx:
        found = await tx.connection.execute(select(stored_blobs.c.name).where(stored_blobs.c.kind != "adapter"))
        return set(found.scalars())


@pytest.mark.parametrize(
    ("last", "checkpoints", "batches"),
    [(6, {1, 2, 3, 4, 5, 6}, {2, 3, 4, 5, 6}), (7, {1, 2, 3, 4, 5, 6, 7}, {2, 3, 4, 5, 6}), (8, {7, 8}, {8})],
)
async def test_what_a_checkpoint_is_recomputed_from_is_kept_as_long_as_it(
    bus: Bus, database_url: str, last: int, checkpoints: set[int], batches: set[int]
) -> None:
    expected = {f"a/v{version}/checkpoint" for version in checkpoints} | {f"a/v{version}/batch" for version in batches}
    async with running_world(bus, database_url, Stages(since=since)) as world:
        await world.submit("a", spec(steps=last, keep={"checkpoints": 2}))
        await trained(world, "a", last)

        async def is_cleaned() -> bool:
            return await stored(world) == expected

        await eventually(is_cleaned)
        async with world.database.transaction() as tx:
            needed = await needed_blobs(tx.connection, "a")
            assert needed is not None
            assert {name for name in needed.kept if "/" in name.removeprefix("a/")} == expected
            task = await find_task(tx.connection, "a")
            assert task is not None
            old = {name for name in await superseded_blobs(tx.connection, [task]) if name.endswith(("/checkpoint", "/batch"))}
            restoring = await steps.restored_from(tx.connection, task)
            told = await steps.announcement(tx.connection, task)
    assert old == everything(last) - expected  # at one look, whatever was deleted before
    first = since(last) or last
    assert set(restoring) == {f"a/v{version}/checkpoint" for version in range(first, last + 1)} | {
        f"a/v{version}/batch" for version in range(first + 1, last + 1)
    }
    assert told is not None
    assert told.checkpoint.since == since(last)
