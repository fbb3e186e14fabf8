"""Versions whose state is not stored: their blobs, and how a trainer that lost the state recomputes it."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from common import streams
from common.blobs import Blobs
from common.bus import Bus
from common.errors import Reject
from common.messages import BlobRef, CheckpointRef, StoredStep
from tests.support.keyed import Keyed
from tests.support.paths import ROOT
from tests.support.services import service_process
from tests.support.trainer.batches import SPECS, announced, batch_of, call, groups_of, send, steps_alone, store, trained_alone, update_in
from tests.support.trainer.groups import make_spec
from tests.support.waiting import eventually
from tests.trainer.lineages import EVERY, emit_step, fresh, recomputed, steps
from tests.trainer.processes import environment
from trainer_svc.batch import Group
from trainer_svc.learner import Learner
from trainer_svc.model.policy import Policy
from trainer_svc.replay.steps import replay_all, replay_step
from trainer_svc.state.checkpoint import read_checkpoint
from trainer_svc.state.step_recording import Lineage, read_lineage, read_recording, vectors_digest, write_lineage, write_recording

UNDISTURBED = """
import sys
import torch
from tests.support.trainer.batches import trained_alone
from trainer_svc.model.policy import Policy, prepare_torch
from trainer_svc.state.step_recording import vectors_digest

prepare_torch(1, torch.device("cpu"))
print(vectors_digest(trained_alone(Policy.load(sys.argv[1], torch.device("cpu")), "a", 3)))
"""
"""In a process of its own, as the services are: that of the tests may compute in a mode of MKL that another test has chosen."""


async def lineage_in(bus: Bus, checkpoint: BlobRef, folder: Path) -> Lineage:
    found = read_lineage(await Blobs(bus).fetch_folder(checkpoint, folder))
    assert found is not None
    return found


async def test_state_is_stored_every_so_many_steps_and_where_it_is_asked_for(bus: Bus, learner: Learner, policy: Policy) -> None:
    updates = await steps(bus, fresh(bus, learner), 8)
    assert [update.checkpoint.since for update in updates] == [None, 1, 1, None, 4, 4, None, None]  # the task has eight steps
    assert [update.batch is None for update in updates] == [update.checkpoint.since is None for update in updates]
    small, whole = ([u.checkpoint.size_bytes for u in updates if (u.checkpoint.since is None) == is_whole] for is_whole in (False, True))
    assert max(small) == 10_240 < min(whole)  # minimum size of a tar
    assert [u.adapter.canary for u in updates] == [alone.canary for alone in steps_alone(policy, "a", 8)]
    kept = make_spec("a", seed=1, keep={"every": 2})
    trainer, checkpoint, since = fresh(bus, learner), None, []
    for version in range(3):
        named = await store(bus, "b", groups_of("a", version), version)
        update = update_in(await call(trainer, batch_of("b", version, named, checkpoint, kept)))
        checkpoint, since = update.checkpoint, [*since, update.checkpoint.since]
    assert since == [None, None, 2]


@pytest.mark.parametrize(("lost_at", "retrained"), [(1, 0), (2, 1), (3, 2), (4, 0), (5, 1)])
async def test_lost_trainer_recomputes_a_bounded_number_of_steps_with_equal_digests(
    bus: Bus, learner: Learner, policy: Policy, tmp_path: Path, lost_at: int, retrained: int
) -> None:
    before = await steps(bus, fresh(bus, learner), lost_at)
    await bus.streams.purge(streams.SCORED, "trajectories.scored.a.>")  # as the scheduler does once settled
    counted = recomputed()
    (after,) = await steps(bus, fresh(bus, learner), 1, first=lost_at, checkpoint=before[-1].checkpoint)
    assert recomputed() - counted == retrained < EVERY
    assert after.checkpoint.since is None
    folder = await Blobs(bus).fetch_folder(after.checkpoint, tmp_path / "checkpoint")
    found = read_checkpoint(folder, "a", lost_at + 1, SPECS["a"], torch.device("cpu"))
    assert vectors_digest(found) == vectors_digest(trained_alone(policy, "a", lost_at + 1))
    assert after.adapter.canary == steps_alone(policy, "a", lost_at + 1)[-1].canary


async def test_skipped_updates_are_recomputed_and_the_fourth_in_a_row_fails_wherever_it_is_trained(bus: Bus, learner: Learner) -> None:
    """Each step by a trainer that lost the state: versions 2 and 3 are recomputed from their batches."""
    spec, checkpoint, trainer = make_spec("a", seed=1, algorithm={"advantage": "dr_grpo"}), None, fresh(bus, learner)
    for version in range(4):
        groups = [with_reward(group, 1e30) if version else group for group in groups_of("a", version)]
        if version == 3:
            trainer = fresh(bus, learner)
        update = update_in(await call(trainer, batch_of("a", version, await store(bus, "a", groups, version), checkpoint, spec)))
        assert update.metrics["skipped_updates"] == float(version > 0)
        checkpoint = update.checkpoint
    for one in (trainer, fresh(bus, learner)):
        named = await store(bus, "a", [with_reward(group, 1e30) for group in groups_of("a", 4)], 4)
        with pytest.raises(Reject, match="step from version 4: gradient norm is inf; updates of the 3 steps before were skipped, too"):
            await call(one, batch_of("a", 4, named, checkpoint, spec))


def with_reward(group: Group, reward: float) -> Group:
    """The first member has that reward."""
    return replace(group, trajectories=(replace(group.trajectories[0], reward=reward), *group.trajectories[1:]))


@pytest.mark.slow
async def test_process_that_dies_between_checkpoints_costs_no_version_and_changes_none(
    keyed_bus: Bus, keyed: Keyed, model_folder: Path, tmp_path: Path
) -> None:
    """It dies after the third step and before its announcement; the states after steps two and three are not stored."""
    pools_file = tmp_path / "pools.toml"
    pools_file.write_text(f'[tiny]\nmodel = "{model_folder}"\ntrain_tokens = 1024\ncheckpoint_every = 4\n')
    bus, settings = keyed_bus, environment(keyed, pools_file)
    checkpoint = None
    with service_process("trainer_svc", settings | {"MARLAAS_CRASH_POINT": "after_blobs:3"}, tmp_path / "first") as running:
        for version in range(3):
            await send(bus, batch_of("a", version, await store(bus, "a", groups_of("a", version), version), checkpoint))
            if version < 2:
                checkpoint = (await announced(bus, "a", version + 1)).checkpoint
        await eventually(lambda: running.poll() is not None)
        assert running.returncode == -signal.SIGKILL, (tmp_path / "first").read_text()
    with service_process("trainer_svc", settings, tmp_path / "second"):
        last = await announced(bus, "a", 3)
    assert (checkpoint is not None and checkpoint.since, last.checkpoint.since) == (1, None)
    folder = await Blobs(bus).fetch_folder(last.checkpoint, tmp_path / "checkpoint")
    argv = [sys.executable, "-c", UNDISTURBED, model_folder]
    alone = await asyncio.to_thread(subprocess.run, argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=250)
    assert vectors_digest(read_checkpoint(folder, "a", 3, SPECS["a"], torch.device("cpu"))) == alone.stdout.strip()
    assert '"event": "step_recomputed"' in (tmp_path / "second").read_text()


async def test_run_that_was_rounded_otherwise_continues_and_is_reported(bus: Bus, learner: Learner) -> None:
    """A learner with other micro-batches, so with other rounding."""
    updates = await steps(bus, fresh(bus, learner), 2)
    other = Learner(learner._policy, learner._thread, budget_tokens=32)
    with capture_logs() as logs:
        (after,) = await steps(bus, fresh(bus, other), 1, first=2, checkpoint=updates[-1].checkpoint)
    (line,) = [line for line in logs if line["event"] == "step_recomputed_otherwise"]
    assert 0 < line["difference"] < 1e-3 * line["change"]
    assert after.checkpoint.since is None


async def test_what_is_not_the_state_that_was_lost_is_refused(bus: Bus, learner: Learner, tmp_path: Path) -> None:
    updates = await steps(bus, fresh(bus, learner), 3)
    true = await lineage_in(bus, updates[2].checkpoint, tmp_path / "true")
    first = updates[1]
    assert first.batch is not None
    recording = read_recording(await Blobs(bus).fetch_folder(true.recording, tmp_path / "recording"))
    write_recording(tmp_path / "other", replace(recording, groups=groups_of("a", 7)))
    other = await Blobs(bus).put_folder("a.v3.batch", tmp_path / "other")
    damaged = {
        "version 3: the recorded batch is not the one that was trained": {"recording": other},
        "its adapter differs from the stored one by": {"vectors_sha256": "0" * 64, "adapter": updates[0].adapter.blob},
        "is not in the store": {"recording": first.batch.model_copy(update={"name": "a.v3.batch-0"})},
        "checkpoint is of (task, version, spec)": {"version": 9},
    }
    for number, (reason, changes) in enumerate(damaged.items()):
        folder = tmp_path / f"damaged-{number}"
        write_lineage(folder, true.model_copy(update=changes))
        checkpoint = await Blobs(bus).put_folder("a.v3.checkpoint", folder)
        with pytest.raises(Reject) as caught:
            await steps(bus, fresh(bus, learner), 1, first=3, checkpoint=CheckpointRef(**dict(checkpoint), since=1))
        assert reason in str(caught.value)


async def test_steps_without_a_stored_state_are_replayed_to_the_recorded_digests(bus: Bus, learner: Learner) -> None:
    spec = make_spec("a", seed=1, keep={"batches": 10})
    trainer, checkpoint = fresh(bus, learner), None
    for version in range(5):
        named = await store(bus, "a", groups_of("a", version), version)
        update = update_in(await call(trainer, batch_of("a", version, named, checkpoint, spec)))
        await emit_step(bus, version + 1, StoredStep(adapter=update.adapter, checkpoint=update.checkpoint, batch=update.batch))
        checkpoint = update.checkpoint
    assert checkpoint is not None
    assert checkpoint.since == 4
    assert [compared.is_equal async for compared in replay_all(bus, learner, "a")] == [True] * 5
    assert [(await replay_step(bus, learner, "a", version)).is_equal for version in (2, 3, 4)] == [True] * 3
