"""Batches as the scheduler sends them, and the steps that a trainer should make of them."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.messages import BatchGroup, BatchMember, BlobRef, TrainBatch, TrajectoriesScored, WeightUpdated
from common.spec import TaskSpec
from tests.support.trainer.groups import context_of, make_groups, make_spec, scored
from tests.support.waiting import at_work
from trainer_svc.algorithm.step import StepResult, train_step
from trainer_svc.batch import Group
from trainer_svc.learner import initial_resident
from trainer_svc.model.policy import Policy
from trainer_svc.service import Trainer
from trainer_svc.state.resident import Resident

SPECS = {
    "a": make_spec("a", seed=1, optimizer={"weight_decay": 0.1, "clip_norm": 0.05}),
    "b": make_spec("b", seed=2, lora={"rank": 3, "targets": ["q_proj", "up_proj"]}, optimizer={"betas": [0.5, 0.9]}),
}


async def store(bus: Bus, task: str, groups: Sequence[Group], version: int, members_per_message: int = 2) -> list[BatchGroup]:
    """Publish the groups' scored messages; returns a batch's references to them."""
    named: list[BatchGroup] = []
    for group in groups:
        members: list[BatchMember] = []
        for start in range(0, len(group.trajectories), members_per_message):
            part = group.trajectories[start : start + members_per_message]
            message = TrajectoriesScored(group=context_of(task, group, version=version), members=[scored(t) for t in part])
            trajectory = message.group.trajectory(part[0].member)
            sequence = await bus.publish(Outgoing(streams.scored(task, trajectory), message, f"{task}:{version}:{trajectory}"))
            members += [BatchMember(member=t.member, sequence=sequence, reward=t.reward) for t in part]
        named.append(BatchGroup(group=group.group, version=version, members=members))
    return named


def batch_of(task: str, version: int, groups: list[BatchGroup], checkpoint: BlobRef | None, spec: TaskSpec | None = None) -> TrainBatch:
    return TrainBatch(
        tenant="acme", task=task, pool="tiny", version=version, spec=spec or SPECS[task], checkpoint=checkpoint, groups=groups, weight=1.0
    )


async def send(bus: Bus, batch: TrainBatch) -> None:
    await bus.publish(Outgoing(streams.batch("tiny", batch.task), batch, f"{batch.task}:v{batch.version}:batch"))


def groups_of(task: str, version: int) -> list[Group]:
    return make_groups(1000 * version + ord(task))


async def call(trainer: Trainer, batch: TrainBatch) -> list[Outgoing]:
    return [out async for out in trainer.handle(Delivery(streams.batch(batch.pool, batch.task), {}, batch.encode(), 1, 1))]


def update_in(outgoing: list[Outgoing]) -> WeightUpdated:
    assert len(outgoing) == 1
    assert isinstance(outgoing[0].message, WeightUpdated)
    return outgoing[0].message


def trained_alone(policy: Policy, task: str, steps: int) -> Resident:
    return steps_alone(policy, task, steps)[-1].resident


def steps_alone(policy: Policy, task: str, steps: int) -> list[StepResult]:
    resident, found = initial_resident(policy, task, SPECS[task]), list[StepResult]()
    for version in range(steps):
        found.append(train_step(policy, resident, groups_of(task, version), SPECS[task], budget_tokens=1024))
        resident = found[-1].resident
    return found


def serving(bus: Bus, trainer: Trainer, slots: int = 3) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    return at_work(bus.consume(streams.trainer_batches("tiny"), trainer.handle, Slots(slots)))


async def announced(bus: Bus, task: str, version: int) -> WeightUpdated:
    async with asyncio.timeout(250):
        async for delivery in bus.streams.follow(streams.WEIGHTS, streams.weight_updated("tiny", task)):
            update = delivery.read(WeightUpdated)
            if update.version == version:
                return update
    raise AssertionError("unreachable")
