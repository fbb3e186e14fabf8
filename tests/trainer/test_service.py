"""The handler over real NATS: batches in, announced versions out, whatever is delivered twice or goes wrong."""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing, Slots
from common.errors import Reject, Unavailable
from common.messages import (
    BatchGroup,
    BatchMember,
    BlobRef,
    DeadLetter,
    ScoredTrajectory,
    TaskStatus,
    TrainBatch,
    TrajectoriesScored,
    WeightUpdated,
)
from common.spec import Optimizer, TaskSpec
from common.streams import KIND_HEADER
from tests.conftest import eventually
from tests.trainer.conftest import group_context, make_groups, make_spec, scored
from trainer_svc.algorithm.step import StepResult, train_step
from trainer_svc.batch import Group
from trainer_svc.learner import Learner, initial_resident
from trainer_svc.model.adapter import read_adapter
from trainer_svc.model.policy import Policy
from trainer_svc.service import Trainer
from trainer_svc.state.checkpoint import read_checkpoint
from trainer_svc.state.resident import Resident, Residents

SPECS = {
    "a": make_spec("a", seed=1, optimizer={"weight_decay": 0.1, "clip_norm": 0.05}),
    "b": make_spec("b", seed=2, lora={"rank": 3, "targets": ["q_proj", "up_proj"]}, optimizer={"betas": [0.5, 0.9]}),
}


async def store(bus: Bus, task: str, groups: Sequence[Group], version: int, members_per_message: int = 2) -> list[BatchGroup]:
    """Publish the groups' scored messages; returns how a batch names them."""
    named: list[BatchGroup] = []
    for group in groups:
        members: list[BatchMember] = []
        for start in range(0, len(group.trajectories), members_per_message):
            part = group.trajectories[start : start + members_per_message]
            message = TrajectoriesScored(group=group_context(task, group, version=version), members=[scored(t) for t in part])
            trajectory = f"{version}-{group.group}-{start}"
            sequence = await bus.publish(Outgoing(streams.scored(task, trajectory), message, f"{task}:{trajectory}"))
            members += [BatchMember(member=t.member, sequence=sequence, reward=t.reward) for t in part]
        named.append(BatchGroup(group=group.group, version=version, members=members))
    return named


def batch_of(task: str, version: int, groups: list[BatchGroup], checkpoint: BlobRef | None, spec: TaskSpec | None = None) -> TrainBatch:
    return TrainBatch(
        tenant="acme", task=task, pool="tiny", version=version, spec=spec or SPECS[task], checkpoint=checkpoint, groups=groups
    )


async def send(bus: Bus, batch: TrainBatch) -> None:
    await bus.publish(Outgoing(streams.batch("tiny", batch.task), batch, f"{batch.task}:v{batch.version}:batch"))


def groups_of(task: str, version: int) -> list[Group]:
    return make_groups(1000 * version + ord(task))


async def call(trainer: Trainer, batch: TrainBatch) -> list[Outgoing]:
    return [out async for out in trainer.handle(Delivery(streams.batch("tiny", batch.task), {}, batch.encode(), 1, 1))]


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


@pytest.fixture
def residents() -> Residents:
    return Residents(limit=8)


@pytest.fixture
def trainer(bus: Bus, learner: Learner, residents: Residents) -> Trainer:
    return Trainer(bus, learner, residents, "tiny")


@asynccontextmanager
async def serving(bus: Bus, trainer: Trainer, slots: int = 3) -> AsyncIterator[None]:
    runner = asyncio.create_task(bus.consume(streams.trainer_batches("tiny"), trainer.handle, Slots(slots)))
    try:
        yield
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def announced(bus: Bus, task: str, version: int) -> WeightUpdated:
    async with asyncio.timeout(250):
        async for delivery in bus.follow(streams.WEIGHTS, streams.weight_updated("tiny", task)):
            update = delivery.read(WeightUpdated)
            if update.version == version:
                return update
    raise AssertionError("unreachable")


async def test_interleaved_tasks_are_trained_as_if_alone_and_published_whole(
    bus: Bus, trainer: Trainer, policy: Policy, tmp_path: Path
) -> None:
    checkpoints: dict[str, BlobRef | None] = {"a": None, "b": None}
    updates: dict[str, WeightUpdated] = {}
    async with serving(bus, trainer):
        for version in range(3):
            for task in SPECS:
                await send(bus, batch_of(task, version, await store(bus, task, groups_of(task, version), version), checkpoints[task]))
            for task in SPECS:
                updates[task] = await announced(bus, task, version + 1)
                checkpoints[task] = updates[task].checkpoint

        async def acknowledged() -> bool:
            return await bus.backlog(streams.BATCHES) == 0

        await eventually(acknowledged)
    assert await bus.backlog(streams.FAILED) == 0
    for task, update in updates.items():
        last = steps_alone(policy, task, 3)[-1]
        expected = last.resident
        stored = await Blobs(bus).fetch_folder(update.checkpoint, tmp_path / f"{task}-checkpoint")
        found = read_checkpoint(stored, task, 3, SPECS[task], torch.device("cpu"))
        for name in ("params", "exp_avg", "exp_avg_sq"):
            assert torch.equal(getattr(found.optimizer, name), getattr(expected.optimizer, name))
        adapter = await Blobs(bus).fetch_folder(update.adapter.blob, tmp_path / f"{task}-adapter")
        assert torch.equal(read_adapter(adapter, expected.layout), expected.optimizer.params)
        assert update.adapter.canary == last.canary
        assert len(last.canary.logprobs) == len(last.canary.ids) - 4
        assert update.adapter.name == f"{task}.v3"
        assert update.adapter.rank == SPECS[task].lora.rank


async def test_update_says_what_the_step_was(bus: Bus, trainer: Trainer) -> None:
    groups = groups_of("a", 0)
    (out,) = await call(trainer, batch_of("a", 0, await store(bus, "a", groups, 0), None))
    update = update_in([out])
    assert (out.subject, out.message_id) == ("weight-updated.tiny.a", "a:v1:weights")
    assert (update.tenant, update.task, update.pool, update.version) == ("acme", "a", "tiny", 1)
    assert update.trained_tokens == sum(len(t.ids_T) for group in groups for t in group.trajectories)
    assert update.finished_s > update.started_s
    assert {
        "reward_mean",
        "reward_std",
        "loss",
        "grad_norm",
        "entropy",
        "kl_sampler",
        "ratio_max",
        "clip_fraction",
        "tokens",
    } <= update.metrics.keys()
    assert {"response_length", "truncated_share", "staleness_mean", "staleness_max"} <= update.metrics.keys()
    assert {"read_s", "restore_s", "wait_s", "forward_backward_s", "optimizer_s", "publish_s"} <= update.metrics.keys()
    assert all(np.isfinite(value) for value in update.metrics.values())


@pytest.mark.filterwarnings("ignore:overflow encountered")
async def test_metrics_that_are_not_finite_are_left_out_of_the_update(bus: Bus, trainer: Trainer) -> None:
    """PostgreSQL takes none: the task would wait for its step for ever."""
    huge = {"large": 1.7e308, "small": 0.5}
    groups = [replace(group, trajectories=tuple(replace(t, components=huge) for t in group.trajectories)) for group in groups_of("a", 0)]
    with capture_logs() as logs:
        update = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups, 0), None)))
    assert all(np.isfinite(value) for value in update.metrics.values())
    assert update.metrics["reward.small"] == 0.5
    assert [line["metrics"] for line in logs if line["event"] == "metrics_dropped"] == [["reward.large"]]


async def test_batch_that_was_not_announced_is_recomputed_to_the_same_blobs(bus: Bus, learner: Learner, trainer: Trainer) -> None:
    """A crash between storing blobs and announcing them: another process takes the same step again."""
    first = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    await bus.publish(Outgoing("weight-updated.tiny.a", first, "a:v1:weights"))
    batch = batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), first.checkpoint)
    once = update_in(await call(trainer, batch))
    again = update_in(await call(trainer, batch))  # the resident is past this version
    elsewhere = update_in(await call(Trainer(bus, learner, Residents(8), "tiny"), batch))
    for other in (again, elsewhere):
        assert (other.adapter, other.checkpoint) == (once.adapter, once.checkpoint)
    assert len(await Blobs(bus).names()) == 4


async def test_batch_that_was_announced_is_announced_again_without_a_step(bus: Bus, learner: Learner, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    (out,) = await call(trainer, batch_of("a", 0, named, None))
    await bus.publish(out)
    for member in named[0].members:
        await bus.purge(streams.SCORED, "trajectories.scored.a.>", before=member.sequence + 100)  # as the scheduler does once settled
    again = await call(Trainer(bus, learner, Residents(8), "tiny"), batch_of("a", 0, named, None))
    assert again == [out]


async def test_garbage_where_weights_are_announced_stops_no_task(bus: Bus, trainer: Trainer) -> None:
    await bus.publish_raw("weight-updated.tiny.a", b"garbage", "garbage", {KIND_HEADER: WeightUpdated.kind})
    outs = await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))
    assert update_in(outs).version == 1


async def test_batch_of_a_version_long_past_is_dropped(bus: Bus, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    (out,) = await call(trainer, batch_of("a", 0, named, None))
    later = update_in([out]).model_copy(update={"version": 2})
    await bus.publish(Outgoing(out.subject, later, "a:v2:weights"))
    assert await call(trainer, batch_of("a", 0, named, None)) == []


async def test_evicted_and_resumed_tasks_go_on_from_their_checkpoints(bus: Bus, learner: Learner, policy: Policy, tmp_path: Path) -> None:
    checkpoint = None
    for version in range(3):
        trainer = Trainer(bus, learner, Residents(1), "tiny")  # as after a restart
        update = update_in(await call(trainer, batch_of("a", version, await store(bus, "a", groups_of("a", version), version), checkpoint)))
        checkpoint = update.checkpoint
    assert checkpoint is not None
    folder = await Blobs(bus).fetch_folder(checkpoint, tmp_path / "checkpoint")
    found = read_checkpoint(folder, "a", 3, SPECS["a"], torch.device("cpu"))
    assert torch.equal(found.optimizer.params, trained_alone(policy, "a", 3).optimizer.params)


async def test_resident_that_is_not_the_named_checkpoint_is_not_used(
    bus: Bus, trainer: Trainer, residents: Residents, policy: Policy
) -> None:
    """Two replicas may take one step with different rounding; only one of them was announced."""
    update = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    kept = residents.get("a", update.checkpoint.sha256)
    assert kept is not None
    other = replace(kept, optimizer=replace(kept.optimizer, params=kept.optimizer.params * 2))
    residents.keep(other, "another digest")
    after = update_in(await call(trainer, batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), update.checkpoint)))
    resident = residents.get("a", after.checkpoint.sha256)
    assert resident is not None
    assert torch.equal(resident.optimizer.params, trained_alone(policy, "a", 2).optimizer.params)


def wild_spec(name: str) -> TaskSpec:
    """As the door would not take it any more: a decay that throws the parameters out of range."""
    wild = Optimizer(learning_rate=1.0, eps=1e-45, betas=(0.0, 0.0), weight_decay=1e39)
    return make_spec(name).model_copy(update={"optimizer": wild})


async def test_bad_batch_of_one_task_leaves_the_other_as_it_is(bus: Bus, trainer: Trainer, policy: Policy, residents: Residents) -> None:
    """A's learning rate throws its parameters out of range; B's steps are those of B alone."""
    wild = wild_spec("a")
    async with serving(bus, trainer):
        await send(bus, batch_of("b", 0, await store(bus, "b", groups_of("b", 0), 0), None))
        await send(bus, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None, spec=wild))
        first = await announced(bus, "b", 1)
        await send(bus, batch_of("b", 1, await store(bus, "b", groups_of("b", 1), 1), first.checkpoint))
        second = await announced(bus, "b", 2)
        async for delivery in bus.follow(streams.FAILED, "failed.train.a"):
            reason = delivery.read(DeadLetter).reason
            break
    assert reason == "task a, step from version 0: parameter norm is nan; a lower optimizer.learning_rate may help"
    resident = residents.get("b", second.checkpoint.sha256)
    assert resident is not None
    assert torch.equal(resident.optimizer.params, trained_alone(policy, "b", 2).optimizer.params)


async def test_batches_that_are_ready_together_share_a_step_and_are_answered_each_by_itself(bus: Bus, policy: Policy) -> None:
    """Four tasks, one of them with numbers that explode: three versions, one dead letter, nothing left in the queue."""
    wild = wild_spec("a")
    others = {"b": SPECS["b"], "c": make_spec("c", seed=3, lora={"rank": 16}), "d": make_spec("d", seed=4, algorithm={"loss": "gspo"})}
    residents = Residents(limit=8)
    for task, spec in (others | {"a": wild}).items():
        await send(bus, batch_of(task, 0, await store(bus, task, groups_of(task, 0), 0), None, spec=spec))
    with ThreadPoolExecutor(max_workers=1) as thread:
        all_wait = threading.Event()
        thread.submit(all_wait.wait, 60)
        learner = Learner(policy, thread, budget_tokens=4096, most_together=8)
        async with serving(bus, Trainer(bus, learner, residents, "tiny"), slots=8):
            await eventually(lambda: learner.waiting == 4, 60)
            all_wait.set()
            updates = {task: await announced(bus, task, 1) for task in others}
            async for delivery in bus.follow(streams.FAILED, "failed.train.a"):
                assert "parameter norm is nan" in delivery.read(DeadLetter).reason
                break

            async def acknowledged() -> bool:
                return await bus.backlog(streams.BATCHES) == 0

            await eventually(acknowledged)
    assert await bus.last(streams.WEIGHTS, "weight-updated.tiny.a") is None
    assert await bus.backlog(streams.FAILED) == 1
    assert max(update.metrics["together"] for update in updates.values()) >= 2
    for task, spec in others.items():
        resident = residents.get(task, updates[task].checkpoint.sha256)
        assert resident is not None
        alone = train_step(policy, initial_resident(policy, task, spec), groups_of(task, 0), spec, budget_tokens=4096).resident
        torch.testing.assert_close(resident.optimizer.exp_avg, alone.optimizer.exp_avg, rtol=1e-4, atol=1e-7)
        assert not torch.equal(resident.optimizer.params, initial_resident(policy, task, spec).optimizer.params)


async def test_tasks_that_take_turns_in_memory_are_as_if_alone(bus: Bus, learner: Learner, policy: Policy, tmp_path: Path) -> None:
    """Room for one: each step parks the other task's adapter, moments and counters, and brings its own back, as one."""
    trainer = Trainer(bus, learner, Residents(1), "tiny")
    checkpoints: dict[str, BlobRef | None] = {"a": None, "b": None}
    for version in range(3):
        for task in SPECS:
            named = await store(bus, task, groups_of(task, version), version)
            checkpoints[task] = update_in(await call(trainer, batch_of(task, version, named, checkpoints[task]))).checkpoint
    for task, checkpoint in checkpoints.items():
        assert checkpoint is not None
        folder = await Blobs(bus).fetch_folder(checkpoint, tmp_path / task)
        found, expected = read_checkpoint(folder, task, 3, SPECS[task], torch.device("cpu")), trained_alone(policy, task, 3)
        for name in ("params", "exp_avg", "exp_avg_sq"):
            assert torch.equal(getattr(found.optimizer, name), getattr(expected.optimizer, name))
        assert found.optimizer.steps == expected.optimizer.steps


async def test_missing_message_and_missing_checkpoint_are_rejected_with_the_reason(bus: Bus, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    with pytest.raises(Reject, match="names no checkpoint"):
        await call(trainer, batch_of("a", 1, named, None))
    with pytest.raises(Reject, match="is not in the store"):
        await call(trainer, batch_of("a", 1, named, BlobRef(name="gone", size_bytes=1, sha256="0")))
    await bus.purge(streams.SCORED, "trajectories.scored.a.>")
    with pytest.raises(Reject, match="no longer in stream SCORED"):
        await call(trainer, batch_of("a", 0, named, None))


async def test_disk_that_takes_no_temporary_files_is_waited_for(
    bus: Bus, trainer: Trainer, learner: Learner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no task's fault: neither when a version is written, nor when a checkpoint is read."""
    place = tmp_path / "temporary"
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    batch = batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)
    with pytest.raises(Unavailable, match=f"the disk under {place} cannot be used: .*No such file"):
        await call(trainer, batch)
    place.mkdir()
    update = update_in(await call(trainer, batch))
    place.rmdir()
    after = batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), update.checkpoint)
    restarted = Trainer(bus, learner, Residents(8), "tiny")
    with pytest.raises(Unavailable, match="cannot be used"):
        await call(restarted, after)
    place.mkdir()
    assert update_in(await call(restarted, after)).version == 2


async def test_batch_for_another_pool_is_rejected(bus: Bus, trainer: Trainer) -> None:
    batch = batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)
    with pytest.raises(Reject, match="for pool 'large'; this trainer serves 'tiny'"):
        await call(trainer, batch.model_copy(update={"pool": "large"}))


@pytest.mark.parametrize("state", ["cancelled", "failed", "finished"])
async def test_batch_of_an_ended_task_is_dropped_and_its_state_forgotten(
    bus: Bus, trainer: Trainer, residents: Residents, state: str
) -> None:
    first = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    assert len(residents) == 1
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state=state, version=1, steps=8, submitted_s=0, updated_s=0)
    await bus.put_value(streams.TASKS_BUCKET, "a", status)
    assert await call(trainer, batch_of("a", 1, [BatchGroup(group=0, version=0, members=[])], first.checkpoint)) == []
    assert len(residents) == 0


async def test_running_task_has_its_steps_taken(bus: Bus, trainer: Trainer) -> None:
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state="running", version=0, steps=8, submitted_s=0, updated_s=0)
    await bus.put_value(streams.TASKS_BUCKET, "a", status)
    assert len(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))) == 1


async def test_void_member_in_a_batch_is_rejected_by_name(bus: Bus, trainer: Trainer) -> None:
    (group,) = make_groups(1, groups=1)
    members: list[ScoredTrajectory] = [scored(t, failure="sandbox died" if t.member == 1 else None) for t in group.trajectories]
    message = TrajectoriesScored(group=group_context("a", group), members=members)
    sequence = await bus.publish(Outgoing(streams.scored("a", "0-0"), message, "a:0"))
    named = [BatchMember(member=t.member, sequence=sequence, reward=t.reward) for t in group.trajectories]
    with pytest.raises(Reject, match="member 1: void"):
        await call(trainer, batch_of("a", 0, [BatchGroup(group=0, version=0, members=named)], None))
    named.pop(1)
    assert (
        update_in(await call(trainer, batch_of("a", 0, [BatchGroup(group=0, version=0, members=named)], None))).metrics["trajectories"] == 3
    )


async def test_task_that_starts_from_another_adapter_goes_on_from_its_weights_with_fresh_moments(
    bus: Bus, trainer: Trainer, policy: Policy, residents: Residents, tmp_path: Path
) -> None:
    source = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    start = source.adapter.model_copy(update={"task": "w", "version": 0})
    spec = make_spec("w", seed=9)
    batch = batch_of("w", 0, await store(bus, "w", groups_of("a", 1), 0), None, spec).model_copy(update={"start": start})
    update = update_in(await call(trainer, batch))
    folder = await Blobs(bus).fetch_folder(source.adapter.blob, tmp_path / "adapter")
    begun = initial_resident(policy, "w", spec, folder)
    assert torch.equal(begun.optimizer.params, trained_alone(policy, "a", 1).optimizer.params)
    assert not begun.optimizer.exp_avg.any()
    expected = train_step(policy, begun, groups_of("a", 1), spec, budget_tokens=1024).resident
    found = residents.get("w", update.checkpoint.sha256)
    assert found is not None
    assert torch.equal(found.optimizer.params, expected.optimizer.params)
    other = batch.model_copy(update={"spec": make_spec("w", lora={"rank": 4})})
    with pytest.raises(Reject, match=r"adapter: .*lora_A\.weight should have shape \(4, 128\), found \(8, 128\)"):
        await call(trainer, other)
