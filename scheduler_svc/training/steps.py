"""Optimizer steps: sends a task's next batch to the trainer once its groups are ready; snapshots of running tasks for policies."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.messages import BatchGroup, TrainBatch
from scheduler_svc.base.scheduling_policy import SchedulingPolicy, TaskSnapshot, steps_to_send_together
from scheduler_svc.base.states import TaskState, VoidReason
from scheduler_svc.base.transaction import OutboxMessage, Transaction
from scheduler_svc.training.decisions.admission import allowance
from scheduler_svc.training.decisions.batching import LiveGroup, groups_for_step, stale_groups
from scheduler_svc.training.homes import reachable_homes
from scheduler_svc.training.queries import groups, steps, tasks
from scheduler_svc.training.queries.tasks import Task
from scheduler_svc.training.termination import void_and_refund


async def task_snapshots(connection: AsyncConnection) -> list[TaskSnapshot]:
    """Snapshots of all running tasks, which it locks, for policies that compare tasks."""
    ready, training = await groups.ready_groups(connection), await steps.tasks_in_training(connection)
    return [
        TaskSnapshot(
            task=task.id,
            accepted_at=task.accepted_at or task.submitted_at,
            allowance=allowance_of_task(task),
            lockstep_allowance=allowance_of_task(task, max_staleness=0),
            has_step_ready=ready.get(task.id, 0) >= task.spec.algorithm.groups_per_step,
            is_training=task.id in training,
        )
        for task in await tasks.lock_running_tasks(connection)
    ]


def allowance_of_task(task: Task, max_staleness: int | None = None) -> int:
    algorithm = task.spec.algorithm
    return allowance(
        version=task.version,
        max_staleness=algorithm.max_staleness if max_staleness is None else max_staleness,
        steps=task.spec.steps,
        groups_per_step=algorithm.groups_per_step,
        admitted=task.admitted,
        voided=task.voided,
    )


async def send_ready_steps(tx: Transaction, found: Sequence[Task], policy: SchedulingPolicy) -> None:
    """Send the next steps of these locked tasks to the trainer if their groups are ready.

    Under the synchronous policy it sends nothing: `admit` sends all steps together once all are ready.
    """
    if policy is not SchedulingPolicy.SYNCHRONOUS:
        await _send_steps(tx, found)


async def _send_steps(tx: Transaction, found: Sequence[Task]) -> int:
    """Send the ready steps of the running tasks among `found`; returns their number."""
    going_on = {task.id: task for task in found if task.state == TaskState.RUNNING and task.version < task.spec.steps}
    live = await groups.unbatched_groups(tx.connection, {task.id: task.version for task in going_on.values()}) if going_on else {}
    numbers = {task.id: await _groups_for_step(tx, task, live[task.id]) for task in going_on.values()}
    chosen = {task: (going_on[task].version, found) for task, found in numbers.items() if found is not None}
    if chosen:
        batched = await steps.batch_groups(tx.connection, chosen)
        await send_to_trainer(tx, [(going_on[task], members) for task, members in batched.items()])
    return len(chosen)


async def _groups_for_step(tx: Transaction, task: Task, live: Sequence[LiveGroup]) -> list[int] | None:
    """Group numbers of the task's next step, or None if the step must wait; stale groups are voided."""
    algorithm = task.spec.algorithm
    stale = stale_groups(live, version=task.version, max_staleness=algorithm.max_staleness)
    if stale:
        keys = [(task.id, number) for number in stale]
        await void_and_refund(tx, {task.id: task}, keys, VoidReason.STALE, {})
    return groups_for_step(live, version=task.version, max_staleness=algorithm.max_staleness, groups_per_step=algorithm.groups_per_step)


async def send_to_trainer(tx: Transaction, batched: Sequence[tuple[Task, list[BatchGroup]]]) -> None:
    """Post the steps to the trainer, to a home's queue if the home is ready, and record the batches' digests.

    The digest identifies the step in the trainer's announcement.
    """
    messages = [
        TrainBatch(
            tenant=task.tenant,
            task=task.id,
            pool=task.spec.pool,
            version=task.version,
            spec=task.spec,
            checkpoint=task.checkpoint,
            start=task.start,
            groups=members,
            weight=task.weight,
        )
        for task, members in batched
    ]
    await steps.note_digests(tx.connection, messages)
    homes = await reachable_homes(tx.connection, [task for task, _ in batched], "trainer")
    for message in messages:
        subject = streams.batch(streams.queue(message.pool, homes.get(message.task)), message.task)
        tx.post([OutboxMessage(subject, message, f"{message.task}:v{message.version}:batch")])


async def send_steps_together(tx: Transaction) -> int:
    running = {task.id: task for task in await tasks.lock_running_tasks(tx.connection)}
    together = steps_to_send_together(await task_snapshots(tx.connection))
    return await _send_steps(tx, [running[task] for task in together])
