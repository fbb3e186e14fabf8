"""What goes out: groups to open, as pace, fairness and capacity allow; batches, as soon as a step is complete."""

import hashlib
from collections import Counter
from collections.abc import Sequence, Set
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import BatchGroup, CheckEnvironment, GroupContext, OpenGroup, TrainBatch
from scheduler_svc.decisions.admission import Admission, allowance, groups_to_admit, places_of, pools_with_room
from scheduler_svc.decisions.batching import LiveGroup, groups_for_step, stale_groups
from scheduler_svc.decisions.fair_share import starting_virtual_time
from scheduler_svc.decisions.min_share import Capacity, InFlight
from scheduler_svc.decisions.scheduling_policy import Policy, TaskSnapshot, allowances, steps_to_send_together
from scheduler_svc.lifecycle import evaluations
from scheduler_svc.lifecycle.endings import void_and_refund
from scheduler_svc.lifecycle.task_events import publish_status
from scheduler_svc.store.database import ADMISSION_LOCK
from scheduler_svc.store.queries import groups, outbox, steps, tasks
from scheduler_svc.store.queries.groups import NewGroup
from scheduler_svc.store.queries.in_flight import work_in_flight
from scheduler_svc.store.queries.outbox import OutboxMessage
from scheduler_svc.store.queries.tasks import Candidates, Charge, Task, Waiting
from scheduler_svc.store.states import TaskState, VoidReason

AT_ONCE = 16
"""Groups that are admitted from one look at who is next; a burst takes several looks."""


class Admitted(NamedTuple):
    """What a look at who is next has led to."""

    letters: int
    """To publish."""
    wants_more: bool
    """There may be more to admit, which takes another look, in a transaction of its own: locks are taken in one order only once."""


async def admit(connection: AsyncConnection, capacities: dict[str, Capacity], policy: Policy, now_s: float) -> Admitted:
    """Open the next AT_ONCE groups, as far as they may go now, which is `now_s` on NATS's clock."""
    waiting = await tasks.has_admissible_work(connection, lock=ADMISSION_LOCK)
    if waiting is None:  # another replica is admitting, or its next tick does
        return Admitted(0, wants_more=False)
    if policy is Policy.SYNCHRONOUS and (sent := await _send_steps_together(connection)):
        return Admitted(sent, wants_more=False)
    if not any(waiting) and policy is not Policy.SYNCHRONOUS:  # there, what was stale may just have made room
        return Admitted(0, wants_more=False)
    in_flight = await work_in_flight(connection)
    with_room = {pool: capacities[pool] for pool in pools_with_room(capacities, in_flight)}
    while with_room:
        claims = await _claims(connection, policy, with_room, waiting, in_flight)
        pools = set(with_room)
        admissions = groups_to_admit(claims.tasks, claims.tenants, with_room, in_flight, most=AT_ONCE)
        some_are_full = pools != set(with_room)  # and their tasks may have stood before those of others
        if admissions:
            opened = await _open_groups(connection, admissions, now_s)
            return Admitted(opened, wants_more=some_are_full or len(admissions) == AT_ONCE)
        if not some_are_full:
            break  # no allowance is left
    return Admitted(0, wants_more=False)


async def join_fair_queue(connection: AsyncConnection, task: Task) -> None:
    """Raise the virtual times of a task that comes to run, and of its tenant where that was idle, to those of who runs."""
    others, siblings = await tasks.virtual_times(connection, task.id, task.tenant)
    await tasks.start_shares(
        connection,
        task.id,
        task.tenant,
        task_time=starting_virtual_time(task.virtual_time, siblings.active, siblings.past),
        # A tenant that is active already keeps its place: a second task buys no second start.
        tenant_time=starting_virtual_time(0.0, others.active, others.past) if not siblings.active else 0.0,
    )


async def _claims(
    connection: AsyncConnection, policy: Policy, with_room: dict[str, Capacity], waiting: Waiting, in_flight: dict[str, InFlight]
) -> Candidates:
    """Who may open groups now: of the asynchronous policy, as many as can matter for the next AT_ONCE groups.

    Evaluations wait for no policy: they are of versions that are trained already.
    """
    pools = set(with_room)
    held_out = await tasks.evaluations_in_line(connection, pools, most=AT_ONCE) if waiting.evaluations else Candidates([], {})
    if len(held_out.tasks) >= AT_ONCE:
        held_out += await _evaluations_short_of_places(connection, held_out, with_room, in_flight)
    if policy is not Policy.ASYNCHRONOUS:
        return held_out + await tasks.candidates_for(connection, allowances(policy, await _standings(connection)), pools)
    found = await tasks.least_served_tasks(connection, pools, most=AT_ONCE)
    return held_out + found + await _short_of_places(connection, found, with_room, in_flight)


async def _evaluations_short_of_places(
    connection: AsyncConnection, seen: Candidates, with_room: dict[str, Capacity], in_flight: dict[str, InFlight]
) -> Candidates:
    """Of tenants, and of tasks, that hold less than they are owed and are not among those that were `seen`."""
    more = Candidates([], {})

    async def look(pool: str, *, but_tenants: Set[str] = frozenset(), but_tasks: Set[str] = frozenset()) -> Candidates:
        known = {task.task for task in (*seen.tasks, *more.tasks)}
        return await tasks.evaluations_in_line(connection, {pool}, most=AT_ONCE, but_tenants=but_tenants, but_tasks=but_tasks | known)

    for pool, places in places_of(seen.tasks, seen.tenants, with_room, in_flight).items():
        more += await look(pool, but_tenants=places.tenants_with_enough())
        more += await look(pool, but_tasks=places.tasks_with_enough())
    return more


async def _short_of_places(
    connection: AsyncConnection, seen: Candidates, with_room: dict[str, Capacity], in_flight: dict[str, InFlight]
) -> Candidates:
    """Who may be owed places and is not among the least served, where more wait than were `seen`.

    Nobody is looked for where those that were seen and are short of places themselves can take all that may be admitted now.
    """
    more = Candidates([], {})
    if len(seen.tasks) < AT_ONCE:  # they are all that wait
        return more
    seen_of = Counter(task.tenant for task in seen.tasks)  # of all pools: so many of each tenant were looked for
    for pool, places in places_of(seen.tasks, seen.tenants, with_room, in_flight).items():
        line = [task for task in seen.tasks if task.pool == pool]
        needed = min(AT_ONCE, places.room_for(line))
        tenants = {task.tenant for task in line}
        short = Counter(task.tenant for task in line if places.task_is_short(task.tenant, task.task))
        if len(seen.tenants) >= AT_ONCE and sum(map(places.tenant_is_short, tenants)) < needed:
            passed = places.tenants_with_enough() | tenants
            more += await tasks.least_served_tasks(connection, {pool}, most=AT_ONCE, but_tenants=passed)
        if any(count >= AT_ONCE and short[tenant] < needed for tenant, count in seen_of.items()):
            known = {task.task for task in (*seen.tasks, *more.tasks)}
            more += await tasks.least_served_tasks(connection, {pool}, most=AT_ONCE, but_tasks=places.tasks_with_enough() | known)
    return more


async def _open_groups(connection: AsyncConnection, admissions: Sequence[Admission], now_s: float) -> int:
    """Write these groups and their messages; returns how many, since a task may have ended or been paused meanwhile."""
    if not admissions:
        return 0
    locked = {task.id: task for task in await tasks.lock_tasks(connection, {admission.task for admission in admissions})}
    counts: Counter[str] = Counter()
    new: list[NewGroup] = []
    for admission in [admission for admission in admissions if not admission.evaluates]:
        task = locked[admission.task]
        if task.state == TaskState.RUNNING and counts[task.id] < _allowance(task):
            new.append(_new_group(task, task.admitted + counts[task.id], admission.charged_tokens, now_s))
            counts[task.id] += 1
    await groups.add_groups(connection, new)
    await tasks.charge(connection, [Charge(group.task, locked[group.task].tenant, group.charged_tokens, admitted=1) for group in new])
    letters = [_open(locked[group.task], group) for group in new]
    for admission in [admission for admission in admissions if admission.evaluates]:
        task = locked[admission.task]
        if task.state == TaskState.RUNNING:
            letters += await evaluations.open_group(connection, task, admission.charged_tokens, now_s)
    outbox.post(connection, letters)
    return len(letters)


async def batch(connection: AsyncConnection, found: Sequence[Task], policy: Policy) -> None:
    """Send the next steps of these tasks to the trainer where their groups are there; the tasks are locked.

    In lockstep steps leave all together, when `admit` sees that all are there.
    """
    if policy is not Policy.SYNCHRONOUS:
        await _send_steps(connection, found)


async def _send_steps(connection: AsyncConnection, found: Sequence[Task]) -> int:
    """Returns how many there were to send."""
    going_on = [task for task in found if task.state == TaskState.RUNNING and task.version < task.spec.steps]
    live = await groups.unbatched_groups(connection, {task.id: task.version for task in going_on}) if going_on else {}
    return sum([await _send_step(connection, task, live[task.id]) for task in going_on])


async def _send_step(connection: AsyncConnection, task: Task, live: Sequence[LiveGroup]) -> bool:
    algorithm = task.spec.algorithm
    stale = stale_groups(live, version=task.version, max_staleness=algorithm.max_staleness)
    if stale:
        keys = [(task.id, number) for number in stale]
        await void_and_refund(connection, {task.id: task}, keys, VoidReason.STALE, {})
    numbers = groups_for_step(live, version=task.version, max_staleness=algorithm.max_staleness, groups_per_step=algorithm.groups_per_step)
    if numbers is None:
        return False
    members = await steps.batch_groups(connection, task.id, task.version, numbers)
    send_to_trainer(connection, task, members)
    return True


def send_to_trainer(connection: AsyncConnection, task: Task, members: list[BatchGroup]) -> None:
    """Post the step that is taken from the task's version."""
    message = TrainBatch(
        tenant=task.tenant,
        task=task.id,
        pool=task.spec.pool,
        version=task.version,
        spec=task.spec,
        checkpoint=task.checkpoint,
        start=task.start,
        groups=members,
    )
    outbox.post(connection, [OutboxMessage(streams.batch(task.spec.pool, task.id), message, f"{task.id}:v{task.version}:batch")])


async def resolve_environment(connection: AsyncConnection, task_id: str, families: set[str]) -> None:
    """Send a waiting task's environment to be checked, now that env replicas say what they serve."""
    for task in await tasks.lock_tasks(connection, [task_id]):
        if task.state == TaskState.SUBMITTED and task.family is None:
            await check_environment(connection, task.id, task.tenant, task.spec.environment.name, families)


async def check_environment(connection: AsyncConnection, task: str, tenant: str, name: str, families: set[str]) -> None:
    """Ask the environment's family whether it takes the task's options; the task waits when none serves it yet."""
    family = family_of(name, families)
    if family is None:
        await tasks.set_reason(connection, task, f"waiting for an environment replica that serves '{name}'")
        await publish_status(connection, task)
        return
    found = await tasks.find_task(connection, task)
    assert found is not None
    await tasks.set_family(connection, task, family)
    spec = found.spec
    evaluation = spec.evaluation_environment if spec.evaluation.options else None
    message = CheckEnvironment(tenant=tenant, task=task, family=family, environment=spec.environment, seed=spec.seed, evaluation=evaluation)
    outbox.post(connection, [OutboxMessage(streams.check(family, task), message, f"{task}:check")])


def family_of(name: str, families: set[str]) -> str | None:
    """Which queue an environment's turns go through: its entry point's name, or `module` for `module:attribute`."""
    head = name.split(":")[0]
    if head in families:
        return head
    return "module" if ":" in name and "module" in families else None


async def _send_steps_together(connection: AsyncConnection) -> int:
    running = {task.id: task for task in await tasks.lock_running_tasks(connection)}
    together = steps_to_send_together(await _standings(connection))
    return await _send_steps(connection, [running[task] for task in together])


async def _standings(connection: AsyncConnection) -> list[TaskSnapshot]:
    """Of every running task, for the policies that look at all of them."""
    ready, training = await groups.ready_groups(connection), await steps.tasks_in_training(connection)
    return [
        TaskSnapshot(
            task=task.id,
            accepted_at=task.accepted_at or task.submitted_at,
            allowance=_allowance(task),
            lockstep_allowance=_allowance(task, max_staleness=0),
            has_step_ready=ready.get(task.id, 0) >= task.spec.algorithm.groups_per_step,
            is_training=task.id in training,
        )
        for task in await tasks.lock_running_tasks(connection)
    ]


def _allowance(task: Task, max_staleness: int | None = None) -> int:
    algorithm = task.spec.algorithm
    return allowance(
        version=task.version,
        max_staleness=algorithm.max_staleness if max_staleness is None else max_staleness,
        steps=task.spec.steps,
        groups_per_step=algorithm.groups_per_step,
        admitted=task.admitted,
        voided=task.voided,
    )


def _new_group(task: Task, number: int, charged_tokens: float, now_s: float) -> NewGroup:
    digest = hashlib.sha256(f"{task.spec.seed}:{number}".encode()).digest()
    return NewGroup(
        task=task.id,
        number=number,
        version=task.version,
        row=number,
        seed=int.from_bytes(digest[:7], "big"),
        size=task.spec.algorithm.group_size,
        charged_tokens=charged_tokens,
        deadline_at=datetime.fromtimestamp(now_s + task.spec.limits.episode_timeout_s, UTC),
    )


def _open(task: Task, group: NewGroup) -> OutboxMessage:
    assert task.family is not None
    context = GroupContext(
        tenant=task.tenant,
        task=task.id,
        pool=task.spec.pool,
        group=group.number,
        size=group.size,
        version=group.version,
        adapter=task.adapter or task.start,
        family=task.family,
        environment=task.spec.environment,
        sampling=task.spec.sampling,
        limits=task.spec.limits,
        row=group.row,
        seed=group.seed,
        deadline_s=group.deadline_at.timestamp(),
        task_seed=task.spec.seed,
    )
    return OutboxMessage(streams.open_group(task.family, task.id, group.number), OpenGroup(group=context), f"{task.id}:{group.number}:open")
