"""What goes out: groups to open, as pace, fairness and capacity allow; batches, as soon as a step is complete."""

import hashlib
import time
from collections import Counter
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import CheckEnvironment, GroupContext, OpenGroup, TrainBatch
from scheduler_svc.admission import Capacity, allowance, groups_to_admit
from scheduler_svc.batching import groups_for_step, stale_groups
from scheduler_svc.database import ADMISSION_LOCK
from scheduler_svc.endings import void_and_refund
from scheduler_svc.fairness import TaskShare
from scheduler_svc.notices import publish_status
from scheduler_svc.policy import Policy, Standing, allowances, steps_to_send_together
from scheduler_svc.queries import groups, outbox, steps, tasks
from scheduler_svc.queries.groups import NewGroup
from scheduler_svc.queries.outbox import Letter
from scheduler_svc.queries.tasks import Task
from scheduler_svc.states import TaskState, VoidReason


async def admit(connection: AsyncConnection, capacities: dict[str, Capacity], policy: Policy) -> int:
    """Open as many groups as may go now; returns how many messages there are to publish."""
    if not (await connection.execute(text("SELECT pg_try_advisory_xact_lock(:lock)"), {"lock": ADMISSION_LOCK})).scalar_one():
        return 0  # another replica is admitting, and will see what this one saw
    running = {task.id: task for task in await tasks.lock_running_tasks(connection)}
    standings = await _standings(connection, list(running.values()), policy)
    if policy is Policy.SYNCHRONOUS and (together := steps_to_send_together(standings)):
        return sum([await _send_step(connection, running[task]) for task in together])
    allowed = allowances(policy, standings)
    shares = await _shares(connection, [task for task in running.values() if allowed.get(task.id)], allowed)
    if not shares:
        return 0
    tenants = await tasks.lock_tenants(connection, {share.tenant for share in shares})
    admissions = groups_to_admit(shares, tenants, capacities, await groups.work_in_flight(connection))
    if not admissions:
        return 0
    counts: Counter[str] = Counter()
    new: list[NewGroup] = []
    for admission in admissions:
        task = running[admission.task]
        new.append(_new_group(task, task.admitted + counts[task.id], admission.charged_tokens))
        counts[task.id] += 1
    await groups.add_groups(connection, new)
    await tasks.count_admitted(connection, dict(counts), {share.task: share.virtual_time for share in shares})
    await tasks.set_virtual_times(connection, list(tenants.values()))
    await outbox.post(connection, [_open(running[group.task], group) for group in new])
    return len(new)


async def batch(connection: AsyncConnection, task: Task, policy: Policy) -> bool:
    """Send the task's next step to the trainer if its groups are there; the task is locked.

    In lockstep steps leave all together, when `admit` sees that all are there.
    """
    return policy is not Policy.SYNCHRONOUS and await _send_step(connection, task)


async def _send_step(connection: AsyncConnection, task: Task) -> bool:
    if task.state != TaskState.RUNNING or task.version >= task.spec.steps:
        return False
    if await steps.step_exists(connection, task.id, task.version):
        return False
    live = await groups.unbatched_groups(connection, task.id)
    algorithm = task.spec.algorithm
    stale = stale_groups(live, version=task.version, max_staleness=algorithm.max_staleness)
    if stale:
        keys = [(task.id, number) for number in stale]
        await groups.lock_groups(connection, keys)
        await void_and_refund(connection, {task.id: task}, keys, VoidReason.STALE, {})
    numbers = groups_for_step(live, version=task.version, max_staleness=algorithm.max_staleness, groups_per_step=algorithm.groups_per_step)
    if numbers is None:
        return False
    members = await steps.batch_groups(connection, task.id, task.version, numbers)
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
    await outbox.post(connection, [Letter(streams.batch(task.spec.pool, task.id), message, f"{task.id}:v{task.version}:batch")])
    return True


async def resolve_environments(connection: AsyncConnection, families: set[str]) -> None:
    """Send waiting tasks' environments to be checked, now that env replicas say what they serve."""
    for task in await tasks.tasks_waiting_for_an_environment(connection):
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
    message = CheckEnvironment(tenant=tenant, task=task, family=family, environment=found.spec.environment, seed=found.spec.seed)
    await outbox.post(connection, [Letter(streams.check(family, task), message, f"{task}:check")])


def family_of(name: str, families: set[str]) -> str | None:
    """Which queue an environment's turns go through: its entry point's name, or `module` for `module:attribute`."""
    head = name.split(":")[0]
    if head in families:
        return head
    return "module" if ":" in name and "module" in families else None


async def _standings(connection: AsyncConnection, running: list[Task], policy: Policy) -> list[Standing]:
    in_lockstep = policy is Policy.SYNCHRONOUS
    ready = await groups.ready_groups(connection) if in_lockstep else {}
    training = await steps.tasks_in_training(connection) if in_lockstep else set[str]()
    return [
        Standing(
            task=task.id,
            accepted_at=task.accepted_at or task.submitted_at,
            allowance=_allowance(task, task.spec.algorithm.max_staleness),
            lockstep_allowance=_allowance(task, 0),
            has_step_ready=ready.get(task.id, 0) >= task.spec.algorithm.groups_per_step,
            is_training=task.id in training,
        )
        for task in running
    ]


async def _shares(connection: AsyncConnection, candidates: list[Task], allowed: dict[str, int]) -> list[TaskShare]:
    expected = await groups.expected_group_tokens(connection, [task.id for task in candidates]) if candidates else {}
    return [
        TaskShare(
            task=task.id,
            tenant=task.tenant,
            pool=task.spec.pool,
            priority=task.spec.priority,
            virtual_time=task.virtual_time,
            allowance=allowed[task.id],
            group_size=task.spec.algorithm.group_size,
            group_tokens=expected.get(task.id, float(task.spec.algorithm.group_size * task.spec.trajectory_tokens)),
            reserved_tokens=float(task.spec.algorithm.group_size * task.spec.trajectory_tokens),
        )
        for task in candidates
    ]


def _allowance(task: Task, max_staleness: int) -> int:
    return allowance(
        version=task.version,
        max_staleness=max_staleness,
        steps=task.spec.steps,
        groups_per_step=task.spec.algorithm.groups_per_step,
        admitted=task.admitted,
        voided=task.voided,
    )


def _new_group(task: Task, number: int, charged_tokens: float) -> NewGroup:
    digest = hashlib.sha256(f"{task.spec.seed}:{number}".encode()).digest()
    return NewGroup(
        task=task.id,
        number=number,
        version=task.version,
        row=number,
        seed=int.from_bytes(digest[:7], "big"),
        size=task.spec.algorithm.group_size,
        charged_tokens=charged_tokens,
        deadline_at=datetime.fromtimestamp(time.time() + task.spec.limits.episode_timeout_s, UTC),
    )


def _open(task: Task, group: NewGroup) -> Letter:
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
    return Letter(streams.open_group(task.family, task.id, group.number), OpenGroup(group=context), f"{task.id}:{group.number}:open")
