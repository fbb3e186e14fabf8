"""Evaluations in a running scheduler."""

from common.messages import GroupContext
from common.messages.prompts import FIRST_EVALUATION_GROUP as FIRST_GROUP
from scheduler_svc.doctor.database_rules import examine_database
from tests.support.scheduler.stages import World


def evaluates(group: GroupContext) -> bool:
    return group.group >= FIRST_GROUP


async def clean(world: World) -> None:
    """Check the doctor's rules about PostgreSQL."""
    async with world.database.transaction() as tx:
        assert await examine_database(tx.connection) == []
