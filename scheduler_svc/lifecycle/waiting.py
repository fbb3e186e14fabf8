"""Why a task waits, from PostgreSQL and the live replicas."""

from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import ReplicaReport
from scheduler_svc.decisions.shares import Capacity, InFlight, Load
from scheduler_svc.decisions.waiting import Cause, Places, Replicas, cause_of
from scheduler_svc.lifecycle.environment_resolution import family_of
from scheduler_svc.store.queries.shares import work_in_flight
from scheduler_svc.store.queries.waiting import Found, waiting_task

NO_CAPACITY = Capacity(0, 0)


async def why(
    connection: AsyncConnection, tenant: str | None, task: str, reports: Sequence[ReplicaReport], capacities: Mapping[str, Capacity]
) -> Cause | None:
    """The cause, or None when nothing holds the task. `tenant`: None for any. `capacities`: what admission allows in each pool.

    Raises: LookupError when the tenant has no such task, or it has ended.
    """
    found = await waiting_task(connection, tenant, task)
    if found is None:
        raise LookupError(f"no task '{task}' that has not ended")
    in_flight = await work_in_flight(connection)
    places = _places(found.tenant, task, in_flight, found.task.pool, capacities.get(found.task.pool, NO_CAPACITY))
    return cause_of(found.task, _replicas(found, reports), places, found.limits)


def _places(tenant: str, task: str, in_flight: Mapping[str, InFlight], pool: str, capacity: Capacity) -> Places:
    here = in_flight.get(pool, InFlight())
    own, of_tenant = here.tasks.get((tenant, task), Load()).sequences, here.tenants.get(tenant, Load()).sequences
    everywhere = sum(load.tenants.get(tenant, Load()).sequences for load in in_flight.values())
    return Places(capacity, here.total, own, of_tenant - own, everywhere)


def _replicas(found: Found, reports: Sequence[ReplicaReport]) -> Replicas:
    samplers = [report for report in reports if report.service == "rollout" and report.pool == found.task.pool]
    serving = [report for report in reports if report.service == "env" and _serves(found, report)]
    trainers = [report for report in reports if report.service == "trainer" and report.pool == found.task.pool]
    return Replicas(
        samplers=len(samplers),
        environments=len(serving),
        trainers=len(trainers),
        sequences=sum(report.sequences for report in samplers),
        sampled=sum(report.busy.get("sequences", report.sequences) for report in samplers),
    )


def _serves(found: Found, report: ReplicaReport) -> bool:
    if found.family is not None:
        return found.family in report.families
    return family_of(found.task.environment, set(report.families)) is not None
