"""Reads what the deployment offers."""

from common.client_api.protocol import AnyDoor
from common.messages import AskDeployment, EnvironmentsAnswer, PoolOffer, PoolsAnswer, ReplicasAnswer, ReplicasOf, TroubleOf


async def read_pools(door: AnyDoor) -> list[PoolOffer]:
    """Base models. Raises: as `Door.ask`, as everything here."""
    return (await door.ask("pools", AskDeployment(), PoolsAnswer)).pools


async def read_replicas(door: AnyDoor) -> list[ReplicasOf]:
    """Live replicas by service and pool, and their load; with their names for the operator."""
    return (await door.ask("replicas", AskDeployment(), ReplicasAnswer)).replicas


async def read_troubles(door: AnyDoor) -> list[TroubleOf]:
    """Processes of services that do not work; for the operator also those that died within the last hour, and why."""
    return (await door.ask("replicas", AskDeployment(), ReplicasAnswer)).troubles


async def read_environments(door: AnyDoor) -> EnvironmentsAnswer:
    """Environments that a task may name, the first page of the tenant's own packages, and sandboxes of code that policies write."""
    return await door.ask("envs", AskDeployment(), EnvironmentsAnswer)
