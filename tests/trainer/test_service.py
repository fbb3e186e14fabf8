"""The handler over real NATS: batches in, announced versions out, also when delivered twice."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.errors import Reject
from common.messages import BlobRef, DeadLetter, TaskStatus, WeightUpdated
from tests.support.trainer.batches import (
    SPECS,
    announced,
    batch_of,
    call,
    groups_of,
    send,
    serving,
    steps_alone,
    store,
    trained_alone,
    update_in,
)
from tests.support.trainer.groups import make_spec
from tests.support.waiting import eventually, eventually_equals
from trainer_svc.algorithm.step import train_step
from trainer_svc.learner import Learner, initial_resident
from trainer_svc.model.adapter import read_adapter
from trainer_svc.model.policy import Policy
from trainer_svc.service import Trainer
from trainer_svc.state.checkpoint import read_checkpoint
from trainer_svc.state.resident import Residents


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
        await eventually_equals(lambda: bus.streams.backlog(streams.BATCHES), 0)
    assert await bus.streams.backlog(streams.FAILED) == 0
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
    assert {"reward_mean", "reward_std", "loss", "grad_norm", "entropy", "tokens"} <= update.metrics.keys()
    assert {"kl_sampler", "ratio_max", "clip_fraction", "staleness_mean", "staleness_max"} <= update.metrics.keys()
    assert {"response_length", "truncated_share"} <= update.metrics.keys()
    assert {"read_s", "restore_s", "wait_s", "score_s", "forward_backward_s", "optimizer_s", "publish_s"} <= update.metrics.keys()
    assert all(np.isfinite(value) for value in update.metrics.values())


async def test_batch_that_was_not_announced_is_recomputed_to_the_same_blobs(bus: Bus, learner: Learner, trainer: Trainer) -> None:
    """A crash between storing blobs and announcing them: another process retrains the same step."""
    first = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    await bus.publish(Outgoing("weight-updated.tiny.a", first, "a:v1:weights"))
    batch = batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), first.checkpoint)
    once = update_in(await call(trainer, batch))
    retried = update_in(await call(trainer, batch))  # the resident is past this version
    elsewhere = update_in(await call(Trainer(bus, learner, Residents(8), "tiny"), batch))
    for other in (retried, elsewhere):
        assert (other.adapter, other.checkpoint) == (once.adapter, once.checkpoint)
    assert len(await Blobs(bus).names()) == 4


async def test_redelivered_batch_is_reannounced_without_a_step(bus: Bus, learner: Learner, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    (out,) = await call(trainer, batch_of("a", 0, named, None))
    await bus.publish(out)
    for member in named[0].members:
        # As the scheduler does once settled.
        await bus.streams.purge(streams.SCORED, "trajectories.scored.a.>", before=member.sequence + 100)
    repeated = await call(Trainer(bus, learner, Residents(8), "tiny"), batch_of("a", 0, named, None))
    assert repeated == [out]


def renamed(ref: BlobRef, name: str) -> BlobRef:
    return ref.model_copy(update={"name": f"{name}-{ref.sha256[:16]}"})


async def test_batch_of_a_version_long_past_is_dropped(bus: Bus, trainer: Trainer) -> None:
    named = await store(bus, "a", groups_of("a", 0), 0)
    (out,) = await call(trainer, batch_of("a", 0, named, None))
    first = update_in([out])
    adapter = first.adapter.model_copy(update={"version": 2, "blob": renamed(first.adapter.blob, "a.v2.adapter")})
    checkpoint = renamed(first.checkpoint, "a.v2.checkpoint")
    later = first.model_copy(update={"version": 2, "adapter": adapter, "checkpoint": checkpoint, "batch": None})
    await bus.publish(Outgoing(out.subject, later, "a:v2:weights"))
    assert await call(trainer, batch_of("a", 0, named, None)) == []


@pytest.mark.parametrize("version", [1, 9])
async def test_announcement_of_another_batch_or_of_a_step_that_was_never_sent_stops_no_training(
    bus: Bus, learner: Learner, trainer: Trainer, version: int
) -> None:
    """As a stolen key of a trainer could send it. The scheduler's status tells which version the task has."""
    batch = batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)
    true = update_in(await call(trainer, batch))
    adapter = true.adapter.model_copy(update={"version": version, "blob": renamed(true.adapter.blob, f"a.v{version}.adapter")})
    changed = {"version": version, "adapter": adapter, "checkpoint": renamed(true.checkpoint, f"a.v{version}.checkpoint"), "trained": None}
    await bus.publish(Outgoing("weight-updated.tiny.a", true.model_copy(update=changed), "forged"))
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state="running", version=0, steps=8, submitted_s=0, updated_s=0)
    await bus.kv.put(streams.TASKS_BUCKET, "a", status)
    retrained = update_in(await call(Trainer(bus, learner, Residents(8), "tiny"), batch))
    assert (retrained.version, retrained.trained, retrained.checkpoint) == (1, batch.digest, true.checkpoint)


async def test_forged_batch_trains_nothing(bus: Bus, trainer: Trainer, residents: Residents) -> None:
    """On another task's subject, or with another task's trajectories."""
    theirs = await store(bus, "b", groups_of("b", 0), 0)
    async with serving(bus, trainer):
        await bus.publish(Outgoing(streams.batch("tiny", "a"), batch_of("b", 0, theirs, None), "another's subject"))
        await bus.publish(Outgoing(streams.batch("tiny", "a"), batch_of("a", 0, theirs, None), "another's trajectories"))
        await eventually_equals(lambda: bus.streams.subjects(streams.FAILED), {"failed.train.a": 2})
    reasons = [delivery.read(DeadLetter).reason async for delivery in bus.streams.stored(streams.FAILED, "failed.train.a")]
    assert "the subject names task 'a', the message 'b'" in reasons
    assert any("is about (task, group, version) ('b', " in reason for reason in reasons)
    assert await bus.streams.backlog(streams.WEIGHTS) == 0
    assert len(residents) == 0


async def test_evicted_and_resumed_tasks_continue_from_checkpoints(bus: Bus, learner: Learner, policy: Policy, tmp_path: Path) -> None:
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
    """Two replicas may train one step with different rounding; only one of them announced it."""
    update = update_in(await call(trainer, batch_of("a", 0, await store(bus, "a", groups_of("a", 0), 0), None)))
    kept = residents.get("a", update.checkpoint.sha256)
    assert kept is not None
    other = replace(kept, optimizer=replace(kept.optimizer, params=kept.optimizer.params * 2))
    residents.keep(other, "another digest")
    after = update_in(await call(trainer, batch_of("a", 1, await store(bus, "a", groups_of("a", 1), 1), update.checkpoint)))
    resident = residents.get("a", after.checkpoint.sha256)
    assert resident is not None
    assert torch.equal(resident.optimizer.params, trained_alone(policy, "a", 2).optimizer.params)


async def test_tasks_that_take_turns_in_memory_are_as_if_alone(bus: Bus, learner: Learner, policy: Policy, tmp_path: Path) -> None:
    """Room for one: each step evicts the other task's adapter, moments and counters, and restores its own, as a whole."""
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


async def test_task_that_starts_from_another_adapter_continues_from_its_weights_with_fresh_moments(
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


async def test_a_tenant_with_one_task_does_not_wait_behind_all_steps_of_a_tenant_with_many(
    bus: Bus, learner: Learner, residents: Residents
) -> None:
    trainer = Trainer(bus, learner, residents, "tiny", slots=1)
    tenants = {"m": "many", "n": "many", "o": "many", "p": "many", "q": "one"}
    for task, tenant in tenants.items():
        named = await store(bus, task, groups_of(task, 0), 0)
        await send(bus, batch_of(task, 0, named, None, make_spec(task)).model_copy(update={"tenant": tenant}))
    all_wait = threading.Event()
    learner._thread.submit(all_wait.wait, 60)
    async with serving(bus, trainer, slots=8):
        await eventually(lambda: trainer.busy()["steps"] == len(tenants))
        all_wait.set()
        await eventually_equals(lambda: bus.streams.backlog(streams.WEIGHTS), 5)
    order = [delivery.read(WeightUpdated).tenant async for delivery in bus.streams.stored(streams.WEIGHTS, "weight-updated.>")]
    assert order[0] == "many"
    assert "one" in order[1:3]
    assert trainer.busy()["steps"] == 0
