"""Step rescuer: resends steps whose message to the trainer, or the trainer's announcement, was lost.

A `trajectories.batch` stays in its stream until the step is announced. A step that PostgreSQL has with the trainer, without a
message in the stream and without an announcement, is therefore lost: an operator deleted a message, or NATS lost one after its
acknowledgement. So is one whose announcement is of another batch, which does not count, and one in the queue of a trainer that the pools
file has no more: that message is removed. The trainer handles a resent step as any other; should both be trained, versions decide which
one counts.
"""

from collections.abc import Collection

import structlog

from common import streams
from common.bus import Bus
from common.errors import Reject
from common.messages import WeightUpdated
from scheduler_svc.base.database import Database
from scheduler_svc.training.queries import steps, tasks
from scheduler_svc.training.queries.steps import SentStep
from scheduler_svc.training.steps import send_to_trainer

AGE_S = 150.0
"""Minimum age of a lost step: above NATS's window of message ids, which would drop the resent message as a duplicate."""

log = structlog.get_logger()


async def resend_lost_steps(database: Database, bus: Bus, queues: Collection[str] = (), *, age_s: float = AGE_S) -> bool:
    """Resend steps lost for longer than `age_s`; True if there were any. `queues`: those of single trainers, beside the pools' own.

    Raises: Retry when NATS or PostgreSQL is unavailable.
    """
    async with database.transaction() as tx:
        sent = await steps.sent_before(tx.connection, age_s)
    lost = [step for step in sent if await _is_lost(bus, step, queues)]
    for step in lost:
        async with database.transaction() as tx:
            for task in await tasks.lock_tasks(tx.connection, {step.task}):
                if task.is_live and task.version == step.version and await steps.is_sent(tx.connection, step):
                    log.warning("step_sent_again", task=task.id, version=task.version)
                    await send_to_trainer(tx, [(task, await steps.members_of_step(tx.connection, task.id, task.version))])
    return bool(lost)


async def _is_lost(bus: Bus, step: SentStep, queues: Collection[str]) -> bool:
    # In this order: a step's message is removed after the announcement.
    for subject in await bus.streams.subjects(streams.BATCHES, streams.batch("*", step.task)):
        queue = streams.token(subject, 2)
        if queue == step.pool or queue in queues:
            return False
        log.warning("step_without_trainer", task=step.task, subject=subject)
        await bus.streams.purge(streams.BATCHES, subject)
    announced = await bus.streams.last(streams.WEIGHTS, streams.weight_updated(step.pool, step.task))
    try:
        return announced is None or not step.is_made_by(announced.read(WeightUpdated))
    except Reject:  # not an announcement that the scheduler reads
        return True
