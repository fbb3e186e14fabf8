"""Admission: opens the next groups, as far as pace, fairness and the samplers' capacity allow.

The number of candidates loaded is independent of the number of waiting tasks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.database import ADMISSION_LOCK
from scheduler_svc.base.scheduling_policy import SchedulingPolicy, allowances
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import shares
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.decisions.budgets import Purse
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight
from scheduler_svc.tenancy.shares import Charge, work_in_flight
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.admission import Admission, groups_to_admit, min_shares, pools_with_room
from scheduler_svc.training.decisions.pool_load import PoolTimes
from scheduler_svc.training.group_messages import new_group, open_group_message
from scheduler_svc.training.homes import reachable_homes
from scheduler_svc.training.queries import candidates, groups, tasks
from scheduler_svc.training.queries.candidates import NOTHING, AdmissibleWork, Candidates, LeftOut
from scheduler_svc.training.queries.groups import NewGroup
from scheduler_svc.training.steps import allowance_of_task, send_steps_together, task_snapshots

ADMISSION_BATCH_SIZE = 16
"""Maximum groups admitted in one transaction; larger bursts take several."""


async def find_candidates(
    connection: AsyncConnection,
    policy: SchedulingPolicy,
    capacities: Mapping[str, Capacity],
    work: AdmissibleWork,
    in_flight: Mapping[str, InFlight],
    left_out: LeftOut = NOTHING,
) -> Candidates:
    """Candidates in the pools of `capacities`: all tasks that can be among the next ADMISSION_BATCH_SIZE groups.

    Evaluations sample trained versions, so the policy does not apply to them.
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
    """Evaluation candidates below their tenant's or task's minimum share that are not in `seen`."""
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
    """Tasks below their minimum share that the query limit cut off from `seen`, the least-served candidates.

    Loads none if tasks in `seen` that are below their minimum share can fill the pool.
    """
    more, limit = Candidates([], {}), ADMISSION_BATCH_SIZE
    if len(seen.tasks) < limit:  # the query was not cut off: no other task waits
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


class Admitted(NamedTuple):
    """Result of one admission."""

    messages: int
    """Number of messages to publish."""
    wants_more: bool
    """Whether more groups may be admitted, in another transaction: each transaction takes its locks once, in id order."""


async def admit(tx: Transaction, capacities: Mapping[str, Capacity], policy: SchedulingPolicy, times: PoolTimes) -> Admitted:
    """Open up to ADMISSION_BATCH_SIZE groups; none if another replica is admitting."""
    nothing = Admitted(0, wants_more=False)
    work = await candidates.has_admissible_work(tx.connection, lock=ADMISSION_LOCK)
    if work is None:  # another replica is admitting
        return nothing
    if policy is SchedulingPolicy.SYNCHRONOUS and (sent := await send_steps_together(tx)):
        return Admitted(sent, wants_more=False)
    if not work.is_some and policy is not SchedulingPolicy.SYNCHRONOUS:  # in lockstep, voiding stale groups may have made room
        return nothing
    in_flight = await work_in_flight(tx.connection)
    with_room = pools_with_room(capacities, in_flight)
    purses: dict[str, Purse] = {}
    limited = NOTHING
    while with_room:
        rooms = {pool: capacities[pool] for pool in with_room}
        found = await find_candidates(tx.connection, policy, rooms, work, in_flight, limited)
        if work.has_budgets:
            purses |= (await budgets.standings(tx.connection, found.tenants.keys() - purses.keys())).purses
        for tenant in purses.keys() & found.tenants.keys():
            found.tenants[tenant].purse = purses[tenant]
        decision = groups_to_admit(found.tasks, found.tenants, rooms, in_flight, limit=ADMISSION_BATCH_SIZE)
        if decision.groups:
            opened = await _open_groups(tx, decision.groups, times)
            return Admitted(opened, wants_more=decision.has_left_out or len(decision.groups) == ADMISSION_BATCH_SIZE)
        if not decision.has_left_out:  # no task has an allowance
            return nothing
        limited |= LeftOut(decision.limited_tenants, decision.limited_places)
        with_room -= decision.full_pools
    return nothing


async def _open_groups(tx: Transaction, admissions: Sequence[Admission], times: PoolTimes) -> int:
    """Insert the groups and post their messages; returns the number of messages, fewer if tasks ended or were paused meanwhile."""
    locked = {task.id: task for task in await tasks.lock_tasks(tx.connection, {admission.task for admission in admissions})}
    admissions = [admission for admission in admissions if locked[admission.task].state == TaskState.RUNNING]
    counts: Counter[str] = Counter()
    new: list[NewGroup] = []
    for admission in [admission for admission in admissions if not admission.evaluates]:
        task = locked[admission.task]
        if counts[task.id] < allowance_of_task(task):
            new.append(new_group(task, task.admitted + counts[task.id], admission.charged_tokens, times))
            counts[task.id] += 1
    await groups.add_groups(tx.connection, new)
    await shares.charge(tx.connection, [Charge(group.task, locked[group.task].tenant, group.charged_tokens, admitted=1) for group in new])
    homes = await reachable_homes(tx.connection, locked.values(), "rollout")
    messages = [open_group_message(locked[group.task], group, homes.get(group.task)) for group in new]
    for admission in [admission for admission in admissions if admission.evaluates]:
        task, home = locked[admission.task], homes.get(admission.task)
        messages += await evaluations.open_group(tx.connection, task, admission.charged_tokens, times, home)
    tx.post(messages)
    return len(messages)
