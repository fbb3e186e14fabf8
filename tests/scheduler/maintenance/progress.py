"""Progress of tasks."""

from tests.support.scheduler.stages import World


async def trained(world: World, task: str, version: int) -> None:
    """Wait until the task has reached a version."""
    await world.rows_become(f"SELECT version >= {version} FROM tasks WHERE id = '{task}'", [(True,)])
