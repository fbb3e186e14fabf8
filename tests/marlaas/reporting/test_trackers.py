"""Events become points, and points arrive in a real tracker."""

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event as Record

from common.messages import Event
from marlaas.reporting.trackers import TrackerError, open_tracker, point_of
from tests.marlaas.tasks import ASKED
from tests.support.paths import ROOT

STEP = Event(
    tenant="acme",
    task="a-1",
    event="step",
    at_s=1000.0,
    data={
        "version": 3,
        "reward": 0.5,
        "adapter": "a name",
        "metrics": {"entropy": 1.25, "reward.format": 0.75},
        "times": {"first_admitted_s": 10.0, "last_sampled_s": 14.0, "batched_s": 14.5, "started_s": 15.0, "trained_s": 18.0},
    },
)
EVALUATION = Event(
    tenant="acme",
    task="a-1",
    event="evaluation",
    at_s=1001.0,
    data={"version": 2, "reward": 0.25, "pass_at": {"1": 0.25, "4": 0.5}, **ASKED},
)


def test_point_has_every_number_of_a_step_and_where_its_time_went() -> None:
    point = point_of(STEP)
    assert point is not None
    assert (point.task, point.tenant, point.version, point.at_s) == ("a-1", "acme", 3, 1000.0)
    assert point.values == {
        "step/reward": 0.5, "step/entropy": 1.25, "step/reward.format": 0.75,
        "step/sampling_s": 4.0, "step/wait_for_batch_s": 0.5, "step/wait_for_trainer_s": 0.5, "step/training_s": 3.0,
    }  # fmt: skip


def test_point_of_an_evaluation_is_of_the_version_that_answered() -> None:
    point = point_of(EVALUATION)
    assert point is not None
    assert (point.version, point.values) == (2, {"evaluation/reward": 0.25, "evaluation/pass_at.1": 0.25, "evaluation/pass_at.4": 0.5})


def test_protocols_and_bounds_have_names_of_their_own() -> None:
    gain = {"reward": 0.2, "standard_error": 0.1, "interval": [0.0, 0.4], "prompts": 9}
    more = {"protocol": "greedy", "interval": [0.1, 0.5], "gain": gain, "binary": True, "by_prompt": "AAAA"}
    point = point_of(EVALUATION.model_copy(update={"data": EVALUATION.data | more}))
    assert point is not None
    assert {name: value for name, value in point.values.items() if "pass" not in name} == {
        "evaluation.greedy/reward": 0.25,
        "evaluation.greedy/lower_bound": 0.1,
        "evaluation.greedy/upper_bound": 0.5,
        "evaluation.greedy/gain": 0.2,
        "evaluation.greedy/gain_lower_bound": 0.0,
        "evaluation.greedy/gain_upper_bound": 0.4,
    }


def test_other_events_and_evaluations_without_reward_have_no_such_number() -> None:
    assert point_of(STEP.model_copy(update={"event": "accepted", "data": {}})) is None
    failed = point_of(EVALUATION.model_copy(update={"data": {"version": 0, "reward": None, "pass_at": {}, **ASKED}}))
    assert failed is not None
    assert failed.values == {}


def test_tensorboard_files_hold_the_points(tmp_path: Path) -> None:
    tracker = open_tracker(f"tensorboard:{tmp_path}")
    for event in (STEP, EVALUATION):
        point = point_of(event)
        assert point is not None
        tracker.log(point)
    tracker.close()
    (file,) = (tmp_path / "a-1").iterdir()
    found = {(value.tag, record.step, record.wall_time): value.simple_value for record in records(file) for value in record.summary.value}
    assert found[("step/entropy", 3, 1000.0)] == 1.25
    assert found[("evaluation/pass_at.4", 2, 1001.0)] == 0.5
    assert len(found) == 10


def records(file: Path) -> list[Record]:
    """TFRecord: length (8 bytes), its checksum (4), content, its checksum (4)."""
    content, found = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(Record.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


LOG_BOTH = """
import sys
from tests.marlaas.reporting.test_trackers import EVALUATION, STEP, open_tracker, point_of

tracker = open_tracker(sys.argv[1])
for event in (STEP, EVALUATION):
    tracker.log(point_of(event))
tracker.close()
"""
"""Program that runs a tracker in its own process: trackers start servers and read their environment once."""


def log_both(address: str, folder: Path, **environment: str) -> None:
    known = {"PATH", "LD_LIBRARY_PATH", "TMPDIR"} & os.environ.keys()
    inherited = {name: os.environ[name] for name in known} | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LOG_BOTH, address]
    done = subprocess.run(command, cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wandb_run_holds_the_points_by_version(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2  # takes half a second, of every process that collects tests

    log_both("wandb:letters", tmp_path, WANDB_MODE="offline")
    (file,) = tmp_path.glob("wandb/offline-run-*/run-a-1.wandb")
    records = [wandb_internal_pb2.Record.FromString(record) for record in wandb_records(file.read_bytes())]
    (run,) = [one.run for one in records if one.WhichOneof("record_type") == "run"]
    assert (run.project, run.run_id, run.display_name, run.run_group) == ("letters", "a-1", "a-1", "acme")
    assert ("*", "version") in {(one.metric.glob_name, one.metric.step_metric) for one in records}
    logged = [{item.nested_key[0]: json.loads(item.value_json) for item in one.history.item} for one in records if one.HasField("history")]
    step, evaluation = logged
    assert (step["version"], step["step/entropy"], step["step/reward.format"]) == (3, 1.25, 0.75)
    assert (evaluation["version"], evaluation["evaluation/pass_at.4"]) == (2, 0.5)


def wandb_records(content: bytes) -> Iterator[bytes]:
    """LevelDB's log after a header of 7 bytes: blocks of 32 KiB; in them checksum (4), length (2), kind (1), content."""
    place, part = 7, b""
    while place + 7 <= len(content):
        if (left := 32_768 - place % 32_768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part of one
            yield part
            part = b""


@pytest.mark.slow
def test_trackio_table_holds_the_points_by_version(tmp_path: Path) -> None:
    log_both("trackio:letters", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"))
    with sqlite3.connect(tmp_path / "kept" / "letters.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    logged = {(run, version): json.loads(metrics) for run, version, metrics in rows}
    assert logged.keys() == {("a-1", 3), ("a-1", 2)}
    assert (logged["a-1", 3]["step/entropy"], logged["a-1", 2]["evaluation/pass_at.4"]) == (1.25, 0.5)


@pytest.mark.parametrize(
    ("address", "reason"),
    [("mlflow:x", "there are tensorboard:<folder>"), ("tensorboard", "there are tensorboard:<folder>"), ("wandb:", "no tracker 'wandb:'")],
)
def test_sink_that_is_none_is_said(address: str, reason: str) -> None:
    with pytest.raises(TrackerError, match=reason):
        open_tracker(address)
