"""The handler with bad batches, messages, numbers or disks: which task fails, and what the others keep."""

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from common import streams
from common.bus import Bus, Outgoing
from common.errors import Reject, Retry, Unavailable
from common.messages import BatchGroup, BatchMember, BlobRef, DeadLetter, ScoredTrajectory, TaskStatus, TrajectoriesScored, WeightUpdated
from common.spec import Optimizer, TaskSpec
from common.streams import KIND_HEADER
from tests.support.trainer.batches import SPECS, announced, batch_of, call, groups_of, send, serving, store, trained_alone, update_in
from tests.support.trainer.groups import context_of, make_groups, make_spec, scored
from tests.support.waiting import eventually, eventually_equals
from trainer_svc.algorithm.step import train_step
from trainer_svc.learner import Learner, initial_resident
from trainer_svc.model.policy import Policy
from trainer_svc.service import Trainer
from trainer_svc.state.resident import Resident, Residents


@pytest.mark.filterwarnings("ignore:overflow encountered")
async def test_metrics_that_are_not_finite_are_left_out_of_the_update(bus: Bus, trainer: Trainer) -> None:
    """PostgreSQL refuses them: the task would wait for its step for ever."""
    huge = {"large": 1.7e308, "small": 0.5}
    groups = [replace(group, trajectories=tuple(replace(t, components=huge) for t in group.trajectories)) for group in groups_of("a", 0)]
    with capture_logs() as logs:
        update = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups, 0), None)))
    assert all(np.isfinite(value) for value in update.metrics.values())
    assert update.metrics["reward.small"] == 0.5
    assert [line["metrics"] for line in logs if line["event"] == "metrics_dropped"] == [["reward.large"]]


async def test_garbage_where_weights_are_announced_stops_no_task(bus: Bus, trainer: Trainer) -> None:
    await bus.publish_raw("weight-updated.tiny.a", b"garbage", "garbage", {KIND_HEADER: WeightUpdated.kind})
    outs = await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))
    assert update_in(outs).version == 1


def wild_spec(name: str) -> TaskSpec:
    """A spec that validation refuses today: its decay throws the parameters out of range."""
    wild = Optimizer(learning_rate=1.0, eps=1e-45, betas=(0.0, 0.0), weight_decay=1e39)
    return make_spec(name).model_copy(update={"optimizer": wild})


async def test_bad_batch_of_one_task_leaves_the_other_as_it_is(bus: Bus, trainer: Trainer, policy: Policy, residents: Residents) -> None:
    """A's parameters would overflow in every step, so it ends with the fourth; B's steps equal those of B alone."""
    wild, last, reasons = wild_spec("a"), dict[str, WeightUpdated](), list[str]()
    async with serving(bus, trainer):
        for version in range(4):
            for task, spec in (("b", SPECS["b"]), ("a", wild)):
                named = await store(bus, task, groups_of(task, version), version)
                await send(bus, batch_of(task, version, named, last[task].checkpoint if last else None, spec=spec))
            for task in "ba"[: 2 if version < 3 else 1]:
                last[task] = await announced(bus, task, version + 1)
        async for delivery in bus.streams.follow(streams.FAILED, "failed.train.a"):
            reasons.append(delivery.read(DeadLetter).reason)
            break
    assert reasons[0].startswith("task a, step from version 3: parameter norm is nan; updates of the 3 steps before were skipped, too")
    for task, expected in (("a", initial_resident(policy, "a", wild)), ("b", trained_alone(policy, "b", 4))):
        resident = residents.get(task, last[task].checkpoint.sha256)
        assert resident is not None
        assert torch.equal(resident.optimizer.params, expected.optimizer.params)
    assert [last[task].metrics["skipped_updates"] for task in "ab"] == [1, 0]


async def test_batches_that_are_ready_together_share_a_step_and_are_answered_each_by_itself(bus: Bus, policy: Policy) -> None:
    """Five tasks, one with overflowing numbers, one with a sampler that disagrees: four versions, one dead letter, an empty queue."""
    wild, failing = wild_spec("e"), make_spec("a", correction={"max_sampler_mismatch": 1e-6})
    others = {"b": SPECS["b"], "c": make_spec("c", seed=3, lora={"rank": 16}), "d": make_spec("d", seed=4, algorithm={"loss": "gspo"})}
    residents = Residents(limit=8)
    for task, spec in (others | {"a": failing, "e": wild}).items():
        await send(bus, batch_of(task, 0, await store(bus, task, groups_of(task, 0), 0), None, spec=spec))
    with ThreadPoolExecutor(max_workers=1) as thread:
        all_wait = threading.Event()
        thread.submit(all_wait.wait, 60)
        learner = Learner(policy, thread, budget_tokens=4096, shared_steps=8)
        async with serving(bus, Trainer(bus, learner, residents, "tiny", slots=8), slots=8):
            await eventually(lambda: learner.waiting == 5, 60)
            all_wait.set()
            updates = {task: await announced(bus, task, 1) for task in others | {"e": wild}}
            async for delivery in bus.streams.follow(streams.FAILED, "failed.train.a"):
                assert "sampler and trainer disagree" in delivery.read(DeadLetter).reason
                break
            await eventually_equals(lambda: bus.streams.backlog(streams.BATCHES), 0)
    assert await bus.streams.last(streams.WEIGHTS, "weight-updated.tiny.a") is None
    assert await bus.streams.backlog(streams.FAILED) == 1
    assert max(update.metrics["together"] for update in updates.values()) >= 2
    assert {task: update.metrics["skipped_updates"] for task, update in updates.items()} == {"b": 0, "c": 0, "d": 0, "e": 1}
    for task, spec in others.items():
        resident = residents.get(task, updates[task].checkpoint.sha256)
        assert resident is not None
        alone = train_step(policy, initial_resident(policy, task, spec), groups_of(task, 0), spec, budget_tokens=4096).resident
        torch.testing.assert_close(resident.optimizer.exp_avg, alone.optimizer.exp_avg, rtol=1e-4, atol=1e-7)
        assert not torch.equal(resident.optimizer.params, initial_resident(policy, task, spec).optimizer.params)


async def test_missing_message_and_missing_checkpoint_are_rejected_with_the_reason(bus: Bus, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    with pytest.raises(Reject, match="names no checkpoint"):
        await call(trainer, batch_of("a", 1, named, None))
    with pytest.raises(Reject, match="is not in the store"):
        await call(trainer, batch_of("a", 1, named, BlobRef(name="a.v1.checkpoint-0", size_bytes=1, sha256="0" * 64)))
    await bus.streams.purge(streams.SCORED, "trajectories.scored.a.>")
    with pytest.raises(Reject, match="no longer in stream SCORED"):
        await call(trainer, batch_of("a", 0, named, None))


async def test_disk_that_takes_no_temporary_files_is_waited_for(
    bus: Bus, trainer: Trainer, learner: Learner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk's failure fails no task, neither when a version is written nor when a checkpoint is read."""
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


async def test_state_that_has_no_room_on_the_device_is_waited_for(bus: Bus, learner: Learner) -> None:
    """It was evicted to host memory, from which it returns with its task's next step."""

    class Full(Residents):
        def get(self, task: str, checkpoint_sha256: str) -> Resident | None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    trainer = Trainer(bus, learner, Residents(8), "tiny")
    first = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    full = Trainer(bus, learner, Full(8), "tiny")
    with pytest.raises(Retry, match="there is no memory for the step: CUDA out of memory"):
        await call(full, batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), first.checkpoint))


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
    await bus.kv.put(streams.TASKS_BUCKET, "a", status)
    assert await call(trainer, batch_of("a", 1, [BatchGroup(group=0, version=0, members=[])], first.checkpoint)) == []
    assert len(residents) == 0


async def test_running_task_has_its_steps_taken(bus: Bus, trainer: Trainer) -> None:
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state="running", version=0, steps=8, submitted_s=0, updated_s=0)
    await bus.kv.put(streams.TASKS_BUCKET, "a", status)
    assert len(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None))) == 1


async def test_void_member_in_a_batch_is_rejected_by_name(bus: Bus, trainer: Trainer) -> None:
    (group,) = make_groups(1, groups=1)
    members: list[ScoredTrajectory] = [scored(t, failure="sandbox died" if t.member == 1 else None) for t in group.trajectories]
    message = TrajectoriesScored(group=context_of("a", group), members=members)
    sequence = await bus.publish(Outgoing(streams.scored("a", "0-0"), message, "a:0"))
    named = [BatchMember(member=t.member, sequence=sequence, reward=t.reward) for t in group.trajectories]
    with pytest.raises(Reject, match="member 1: void"):
        await call(trainer, batch_of("a", 0, [BatchGroup(group=0, version=0, members=named)], None))
    named.pop(1)
    assert (
        update_in(await call(trainer, batch_of("a", 0, [BatchGroup(group=0, version=0, members=named)], None))).metrics["trajectories"] == 3
    )
