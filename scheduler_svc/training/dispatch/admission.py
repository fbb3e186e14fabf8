"""Admission: opens the next groups, as far as pace, fairness and the capacity of the samplers allow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduler_svc.base.database import ADMISSION_LOCK
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.states import TaskState
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy import shares
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.decisions.budgets import Purse
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.tenancy.shares import Charge, work_in_flight
from scheduler_svc.training import evaluations
from scheduler_svc.training.decisions.admission import Admission, groups_to_admit, pools_with_room
from scheduler_svc.training.decisions.pool_load import PoolTimes
from scheduler_svc.training.dispatch.candidates import ADMISSION_BATCH_SIZE, find_candidates
from scheduler_svc.training.dispatch.pace import allowance_of_task
from scheduler_svc.training.dispatch.steps import send_steps_together
from scheduler_svc.training.group_messages import new_group, open_group_message
from scheduler_svc.training.homes.rows import reachable_homes
from scheduler_svc.training.queries import candidates, groups, tasks
from scheduler_svc.training.queries.candidates import NOTHING, LeftOut
from scheduler_svc.training.queries.groups import NewGroup


class Admitted(NamedTuple):
    """Result of one admission."""

    messages: int
    """Messages to publish."""
    wants_more: bool
    """Whether more groups may be admitted, in another transaction: each takes its locks once, in one order."""


async def admit(tx: Transaction, capacities: Mapping[str, Capacity], policy: SchedulingPolicy, times: PoolTimes) -> Admitted:
    """Open up to ADMISSION_BATCH_SIZE groups."""
    nothing = Admitted(0, wants_more=False)
    work = await candidates.has_admissible_work(tx.connection, lock=ADMISSION_LOCK)
    if work is None:  # another replica is admitting
        return nothing
    if policy is SchedulingPolicy.SYNCHRONOUS and (sent := await send_steps_together(tx)):
        return Admitted(sent, wants_more=False)
    if not work.is_some and policy is not SchedulingPolicy.SYNCHRONOUS:  # where stale groups may have just made room
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
    """Write the groups and their messages. Returns the number of messages: a task may have ended or been paused meanwhile."""
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
