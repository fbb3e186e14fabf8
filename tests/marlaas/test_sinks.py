"""Events become points, and points arrive in a real tracker."""

import struct
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event as Record

from common.messages import Event
from marlaas.sinks import SinkError, open_sink, point_of

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
    tenant="acme", task="a-1", event="evaluation", at_s=1001.0, data={"version": 2, "reward": 0.25, "pass_at": {"1": 0.25, "4": 0.5}}
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
    assert (point.version, point.values) == (
        2,
        {"evaluation/reward": 0.25, "evaluation/pass_at.1": 0.25, "evaluation/pass_at.4": 0.5},
    )


def test_other_events_and_evaluations_without_reward_have_no_such_number() -> None:
    assert point_of(STEP.model_copy(update={"event": "accepted", "data": {}})) is None
    failed = point_of(EVALUATION.model_copy(update={"data": {"version": 0, "reward": None, "pass_at": {}}}))
    assert failed is not None
    assert failed.values == {}


def test_tensorboard_files_hold_the_points(tmp_path: Path) -> None:
    sink = open_sink(f"tensorboard:{tmp_path}")
    for event in (STEP, EVALUATION):
        point = point_of(event)
        assert point is not None
        sink.log(point)
    sink.close()
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


@pytest.mark.parametrize(
    ("address", "reason"),
    [("mlflow:x", "there are tensorboard:<folder>"), ("tensorboard", "there are tensorboard:<folder>"), ("wandb:", "no sink 'wandb:'")],
)
def test_sink_that_is_none_is_said(address: str, reason: str) -> None:
    with pytest.raises(SinkError, match=reason):
        open_sink(address)
