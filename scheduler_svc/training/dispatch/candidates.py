"""Candidates: the tasks that admission chooses from; their number does not depend on how many wait."""

from collections import Counter
from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.scheduling_policy import SchedulingPolicy, allowances
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight
from scheduler_svc.training.decisions.admission import min_shares
from scheduler_svc.training.dispatch.pace import task_snapshots
from scheduler_svc.training.queries import candidates
from scheduler_svc.training.queries.candidates import NOTHING, AdmissibleWork, Candidates, LeftOut

ADMISSION_BATCH_SIZE = 16
"""Maximum groups admitted in one transaction; a larger burst takes several."""


async def find_candidates(
    connection: AsyncConnection,
    policy: SchedulingPolicy,
    capacities: Mapping[str, Capacity],
    work: AdmissibleWork,
    in_flight: Mapping[str, InFlight],
    left_out: LeftOut = NOTHING,
) -> Candidates:
    """Tasks that may open groups in the pools of `capacities`: all that can be among the next ADMISSION_BATCH_SIZE groups.

    Evaluations are of trained versions and do not depend on the policy.
    """
    pools, limit = set(capacities), ADMISSION_BATCH_SIZE
    found = Candidates([], {})
    if work.evaluations:
        found += await candidates.evaluation_candidates(connection, pools, limit=limit, but=left_out)
    if len(found.tasks) >= limit:
        found += await _evaluations_below_min_share(connection, found, capacities, in_flight, left_out)
    if policy is not SchedulingPolicy.ASYNCHRONOUS:
        every = await candidates.candidates_for(connection, allowances(policy, await task_snapshots(connection)), pools)
        return found + Candidates([task for task in every.tasks if not left_out.has(task)], every.tenants)
    least_served = await candidates.least_served_tasks(connection, pools, limit=limit, but=left_out)
    return found + least_served + await _tasks_below_min_share(connection, least_served, capacities, in_flight, left_out)


async def _evaluations_below_min_share(
    connection: AsyncConnection, seen: Candidates, capacities: Mapping[str, Capacity], in_flight: Mapping[str, InFlight], left_out: LeftOut
) -> Candidates:
    """Evaluations of tenants and of tasks that are below their minimum share and not among `seen`."""
    more = Candidates([], {})

    async def load(pool: str, but: LeftOut) -> Candidates:
        but |= left_out | LeftOut(tasks={task.task for task in (*seen.tasks, *more.tasks)})
        return await candidates.evaluation_candidates(connection, {pool}, limit=ADMISSION_BATCH_SIZE, but=but)

    for pool, guaranteed in min_shares(seen.tasks, seen.tenants, capacities, in_flight).items():
        more += await load(pool, LeftOut(tenants=guaranteed.satisfied_tenants()))
        more += await load(pool, LeftOut(tasks=guaranteed.satisfied_tasks()))
    return more


async def _tasks_below_min_share(
    connection: AsyncConnection, seen: Candidates, capacities: Mapping[str, Capacity], in_flight: Mapping[str, InFlight], left_out: LeftOut
) -> Candidates:
    """Tasks below their minimum share that are not among the least served, where more tasks wait than `seen`.

    None is loaded where tasks of `seen` that are below their minimum share can fill the room that there is.
    """
    more, limit = Candidates([], {}), ADMISSION_BATCH_SIZE
    if len(seen.tasks) < limit:  # no other task waits
        return more
    seen_of = Counter(task.tenant for task in seen.tasks)  # over all pools, as the query limits each tenant's tasks
    for pool, guaranteed in min_shares(seen.tasks, seen.tenants, capacities, in_flight).items():
        waiting = [task for task in seen.tasks if task.pool == pool]
        needed = min(limit, guaranteed.room_for(waiting))
        tenants = {task.tenant for task in waiting}
        below = Counter(task.tenant for task in waiting if guaranteed.task_is_below(task.tenant, task.task))
        if len(seen.tenants) >= limit and sum(map(guaranteed.tenant_is_below, tenants)) < needed:
            but = left_out | LeftOut(tenants=guaranteed.satisfied_tenants() | tenants)
            more += await candidates.least_served_tasks(connection, {pool}, limit=limit, but=but)
        if any(count >= limit and below[tenant] < needed for tenant, count in seen_of.items()):
            but = left_out | LeftOut(tasks=guaranteed.satisfied_tasks() | {task.task for task in (*seen.tasks, *more.tasks)})
            more += await candidates.least_served_tasks(connection, {pool}, limit=limit, but=but)
    return more
