"""The contract on the wire: golden bytes per kind, and what may and may not change."""

import json
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from common import messages
from common.errors import Reject
from common.messages import (
    Message,
    TokenRecord,
    as_json,
    from_json,
)
from common.spec import EnvironmentSection, TaskSpec, parse_spec
from tests.common.ask_samples import ASKS
from tests.common.message_samples import GROUP, RECORD, REQUEST, SAMPLES, SCORED, SPEC

GOLDEN = Path(__file__).parent / "golden_messages.json"

BY_KIND = {sample.kind: sample for sample in [*SAMPLES, *ASKS]}


def test_every_kind_has_a_sample() -> None:
    assert {kind.kind for kind in Message.__subclasses__()} == set(BY_KIND)


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_bytes_of_a_kind_stay_readable(kind: str) -> None:
    """Changed deliberately and compatibly? Then `python -m tests.common.test_messages` rewrites the golden file."""
    golden = bytes.fromhex(json.loads(GOLDEN.read_text())[kind])
    sample = BY_KIND[kind]
    assert type(sample).decode(golden) == sample
    assert sample.encode() == golden


FREE = {
    "options",
    "protocols",
    "headers",
    "report",
    "weights",
    "rank_weights",
    "components",
    "metrics",
    "data",
    "busy",
    "warnings",
    "template",
    "logit_bias",
    "metadata",
    "served",
}
"""Fields whose keys are anybody's; `spec` of a job and `detail` of the audit are others."""


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_newer_senders_may_add_fields(kind: str) -> None:
    """New fields at the top, in every value, and in every section of a task, which is strict only where a user writes it."""
    sample = BY_KIND[kind]
    free = FREE | {
        "submit-task.1": {"spec"},
        "preview-task.1": {"spec"},
        "audit-answer.1": {"detail"},
        "spec-answer.1": {"spec"},
        "terms-answer.1": {"limits"},
    }.get(kind, set())
    newer = with_fields_of_the_future(msgpack.unpackb(sample.encode()), free)
    assert type(sample).decode(msgpack.packb(newer) or b"") == sample
    newer = with_fields_of_the_future(sample.model_dump(mode="json"), free)
    assert type(sample).decode(json.dumps(newer).encode()) == sample


def with_fields_of_the_future(raw: Any, free: set[str]) -> Any:
    """The same with one more field in each map but those that are free."""
    match raw:
        case dict():
            found = {key: value if key in free else with_fields_of_the_future(value, free) for key, value in raw.items()}
            return found | {"field_of_the_future": 1}
        case list():
            return [with_fields_of_the_future(value, free) for value in raw]
        case _:
            return raw


def test_a_wrong_value_in_a_section_is_still_refused() -> None:
    raw = msgpack.unpackb(BY_KIND["train-batch.1"].encode())
    raw["spec"]["lora"]["rank"] = 0
    with pytest.raises(Reject, match=r"spec\.lora\.rank"):
        messages.TrainBatch.decode(msgpack.packb(raw) or b"")


def test_a_task_that_a_user_writes_may_not_have_unknown_fields() -> None:
    job = messages.SubmitTask(task="a", tenant="t", spec=as_json(SPEC) | {"lora": {"rnk": 4}})
    with pytest.raises(Reject, match=r"lora\.rnk: no such field; did you mean 'rank'\?"):
        parse_spec(messages.SubmitTask.decode(job.encode()).spec)


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_json_carries_the_same(kind: str) -> None:
    """Key-value entries and database columns are JSON."""
    sample = BY_KIND[kind]
    assert from_json(type(sample), as_json(sample)) == sample
    assert type(sample).decode(sample.model_dump_json().encode()) == sample


def test_token_record_keeps_what_was_sampled_apart_from_what_was_not() -> None:
    record = TokenRecord().with_context([5, 6]).with_sampled([7, 8], [-0.25, -0.5]).with_context([9])
    assert len(record) == 5
    assert record.sampled_tokens == 2
    np.testing.assert_array_equal(record.ids_T(), [5, 6, 7, 8, 9])
    np.testing.assert_array_equal(record.sampled_T(), [0, 0, 1, 1, 0])
    np.testing.assert_array_equal(record.logprobs_T(), np.float32([0, 0, -0.25, -0.5, 0]))


def test_token_record_with_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        TokenRecord(ids=b"\0" * 8, logprobs=b"\0" * 8, sampled=b"\0")


def test_trajectory_costs_nine_bytes_a_token() -> None:
    record = TokenRecord().with_context(list(range(1000)))
    assert len(messages.SampleTurns(group=GROUP, members=[REQUEST.model_copy(update={"transcript": record})]).encode()) < 9 * 1000 + 1500


def test_reward_that_is_not_a_number_cannot_travel() -> None:
    raw = msgpack.unpackb(BY_KIND["trajectories-scored.1"].encode())
    raw["members"][0]["reward"] = float("nan")
    with pytest.raises(Reject, match="reward"):
        messages.TrajectoriesScored.decode(msgpack.packb(raw) or b"")


def test_header_names_what_shaping_reads() -> None:
    context = GROUP.model_copy(update={"environment": EnvironmentSection(name="e:x", rank_weights={"short": 0.2, "odd": 1.0})})
    record = RECORD.with_context([4, 5]).with_sampled([6, 7], [-0.5, -0.5])
    attempt = SCORED.model_copy(update={"transcript": record, "components": {"short": 3.0, "odd": float("nan"), "other": 1.0}})
    settlement = messages.TrajectoriesScored(group=context, members=[attempt]).settlement()
    (member,) = messages.Settlement.model_validate_json(settlement.model_dump_json()).members
    assert (member.sampled_tokens, member.longest_turn_tokens, member.components) == (3, 2, {"short": 3.0})


def test_spec_survives_the_wire() -> None:
    assert TaskSpec.model_validate(msgpack.unpackb(msgpack.packb(SPEC.model_dump()) or b"")) == SPEC


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({kind: sample.encode().hex() for kind, sample in sorted(BY_KIND.items())}, indent=1) + "\n")
