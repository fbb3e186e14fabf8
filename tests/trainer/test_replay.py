"""Recorded steps replayed, here and in another process, and the errors when they cannot be, or differ."""

import asyncio
import json
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.errors import Reject
from common.messages import BatchGroup, BlobRef, StoredStep, TrainBatch, WeightUpdated
from common.spec import TaskSpec
from marlaas.stack import servers
from tests.support.keyed import Keyed
from tests.support.services import service_process
from tests.support.trainer.batches import announced, batch_of, call, groups_of, send, store, update_in
from tests.support.trainer.groups import make_groups, make_spec
from tests.trainer.lineages import emit_step
from tests.trainer.processes import environment
from trainer_svc.batch import Trajectory
from trainer_svc.learner import Learner
from trainer_svc.replay.steps import replay_all, replay_step
from trainer_svc.service import Trainer
from trainer_svc.state.checkpoint import read_manifest
from trainer_svc.state.resident import Residents
from trainer_svc.state.step_recording import BATCH_FILE, Recording, read_recording, trained_digest, write_recording

STEPS = 3
NAMED = BatchGroup(group=0, version=2, members=[])
RECORDED = make_spec(
    "a",
    seed=1,
    keep={"batches": 10},
    optimizer={"weight_decay": 0.1, "clip_norm": 0.05, "warmup_steps": 2, "schedule": "cosine"},
    algorithm={"passes": 2, "minibatches": 2},
)


async def train(bus: Bus, learner: Learner, spec: TaskSpec = RECORDED) -> list[WeightUpdated]:
    """Train here, without a restart."""
    trainer = Trainer(bus, learner, Residents(8), "tiny")

    async def take_step(batch: TrainBatch) -> WeightUpdated:
        return update_in(await call(trainer, batch))

    return await train_by(bus, take_step, spec)


async def train_by(bus: Bus, take_step: Callable[[TrainBatch], Awaitable[WeightUpdated]], spec: TaskSpec) -> list[WeightUpdated]:
    """Have all steps taken, and emit each step's event as the scheduler does."""
    checkpoint, updates = None, list[WeightUpdated]()
    for version in range(STEPS):
        groups = await store(bus, "a", groups_of("a", version), version)
        update = await take_step(batch_of("a", version, groups, checkpoint, spec))
        stored = StoredStep(adapter=update.adapter, checkpoint=update.checkpoint, batch=update.batch)
        await emit_step(bus, version + 1, stored)
        updates.append(update)
        checkpoint = update.checkpoint
    await bus.streams.purge(streams.SCORED, "trajectories.scored.a.>")  # as the scheduler does once settled
    return updates


async def test_steps_replayed_in_another_process_have_the_recorded_digests(
    keyed_bus: Bus, keyed: Keyed, model_folder: Path, tmp_path: Path
) -> None:
    """All steps from version 0, and the last alone, resumed from its checkpoint.

    The service takes the steps, in a process of its own: that of the tests may compute in a mode of MKL that another test has chosen.
    """
    pools_file = tmp_path / "pools.toml"
    pools_file.write_text(f'[tiny]\nmodel = "{model_folder}"\ntrain_tokens = 1024\n')
    bus, settings = keyed_bus, environment(keyed, pools_file, MARLAAS_HTTP_PORT=str(servers.free_port()))

    async def take_step(batch: TrainBatch) -> WeightUpdated:
        await send(bus, batch)
        return await announced(bus, "a", batch.version + 1)

    with service_process("trainer_svc", settings, tmp_path / "log"):
        updates = await train_by(bus, take_step, RECORDED)
    for arguments, versions in ((["a"], [1, 2, 3]), (["a", "3"], [3])):
        argv = [sys.executable, "-m", "trainer_svc.replay", *arguments, "--json"]
        operators = settings | {"MARLAAS_NATS_CREDS": str(keyed.keys.credentials("operator"))}
        done = await asyncio.to_thread(subprocess.run, argv, env=operators, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [one["version"] for one in found] == versions
        assert [one["adapter"] for one in found] == [updates[version - 1].adapter.blob.sha256 for version in versions]
        assert [one["checkpoint"] for one in found] == [updates[version - 1].checkpoint.sha256 for version in versions]


async def test_step_whose_checkpoint_is_gone_is_reached_through_those_before_it(bus: Bus, learner: Learner) -> None:
    updates = await train(bus, learner)
    for update in updates[:2]:
        await Blobs(bus).delete(update.checkpoint.name)
    assert (await replay_step(bus, learner, "a", 3)).is_equal


async def test_step_that_differs_is_reported(bus: Bus, learner: Learner) -> None:
    """One stored adapter is not that of the recorded trajectories."""
    updates = await train(bus, learner)
    await bus.streams.purge(streams.EVENTS, "events.acme.a")
    for update in updates:
        wrong = update.adapter.model_copy(update={"blob": update.adapter.blob.model_copy(update={"sha256": "0" * 64})})
        adapter = wrong if update.version == 2 else update.adapter
        await emit_step(bus, 10 + update.version, StoredStep(adapter=adapter, checkpoint=update.checkpoint, batch=update.batch))
    assert [compared.is_equal async for compared in replay_all(bus, learner, "a")] == [True, False, True]


async def test_step_that_cannot_be_replayed_is_refused_with_the_reason(bus: Bus, learner: Learner) -> None:
    async def everything() -> AsyncIterator[object]:
        async for compared in replay_all(bus, learner, "a"):
            yield compared

    with pytest.raises(Reject, match="no step of task a is known here"):
        await anext(everything())
    updates = await train(bus, learner)
    with pytest.raises(Reject, match="task a has no step 9; known are 1 to 3"):
        await replay_step(bus, learner, "a", 9)
    assert updates[0].batch is not None
    await Blobs(bus).delete(updates[0].batch.name)
    with pytest.raises(Reject, match=r"step 1 of task a cannot be replayed: blob a\.v1\.batch-\w+ is not in the store; keep\.batches"):
        await anext(everything())


async def test_tasks_that_keep_no_batches_record_none(bus: Bus, learner: Learner) -> None:
    updates = await train(bus, learner, make_spec("a", seed=1))
    assert [update.batch for update in updates] == [None] * STEPS
    with pytest.raises(Reject, match=r"step 2 of task a was not recorded; set keep\.batches"):
        await replay_step(bus, learner, "a", 2)


async def test_manifests_name_what_each_version_was_made_of(bus: Bus, learner: Learner, tmp_path: Path) -> None:
    updates = await train(bus, learner)
    parents: list[BlobRef | None] = [None, *(update.checkpoint for update in updates)]
    for update, parent in zip(updates, parents, strict=False):
        folder = await Blobs(bus).fetch_folder(update.checkpoint, tmp_path / f"{update.version}")
        manifest = read_manifest(folder)
        assert manifest.parent_sha256 == (parent.sha256 if parent else None)
        assert manifest.trained_sha256 == trained_digest(groups_of("a", update.version - 1))
        assert manifest.next_group == 3
        assert manifest.optimizer_steps == 4 * update.version
        assert manifest.spec is not None
        assert TaskSpec.model_validate(manifest.spec) == RECORDED


def test_recording_is_the_same_bytes_each_time_and_refused_when_damaged(tmp_path: Path) -> None:
    recording = Recording(batch_of("a", 4, [NAMED], None), make_groups(3, groups=2, turns=2))
    for name in ("one", "two"):
        write_recording(tmp_path / name, recording)
    assert (tmp_path / "one" / BATCH_FILE).read_bytes() == (tmp_path / "two" / BATCH_FILE).read_bytes()
    (tmp_path / "one" / BATCH_FILE).write_bytes(b"damaged")
    with pytest.raises(Reject, match="cannot be read"):
        read_recording(tmp_path / "one")


def test_every_field_of_a_trajectory_is_recorded_and_digested(tmp_path: Path) -> None:
    (group,) = make_groups(3, groups=1)
    trajectory = replace(group.trajectories[1], components={"z": 1.0, "a": float("inf")})
    whole = replace(group, staleness=2, trajectories=(trajectory,))
    before = trained_digest([whole])
    for field in fields(Trajectory):
        value = getattr(trajectory, field.name)
        other = value + 1 if not isinstance(value, dict | bool) else not value if isinstance(value, bool) else {}
        assert trained_digest([replace(whole, trajectories=(replace(trajectory, **{field.name: other}),))]) != before, field.name
    message = batch_of("a", 4, [NAMED], None)
    write_recording(tmp_path, Recording(message, [whole]))
    read = read_recording(tmp_path)
    assert read.batch == message
    assert trained_digest(read.groups) == before
    for field in fields(Trajectory):
        np.testing.assert_equal(getattr(read.groups[0].trajectories[0], field.name), getattr(trajectory, field.name))


def test_recording_that_unpacks_to_a_hundred_times_its_size_is_not_unpacked(tmp_path: Path) -> None:
    spec = make_spec("a")
    (tmp_path / BATCH_FILE).write_bytes(zlib.compress(bytes(2**27), 1))
    assert (tmp_path / BATCH_FILE).stat().st_size * 100 < 2**27
    tracemalloc.start()
    with pytest.raises(Reject, match=r"unpacks to more than the [0-9]+ bytes that a step of this task may have"):
        read_recording(tmp_path, spec)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25
