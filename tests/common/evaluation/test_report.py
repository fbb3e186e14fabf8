"""The data of an `evaluation` event."""

import base64
import struct

from common.evaluation import Asked, EvaluationReport, packed, unpacked
from common.messages import Event
from common.spec import parse_spec


def event(**data: object) -> Event:
    return Event.model_validate({"tenant": "acme", "task": "a", "event": "evaluation", "at_s": 1.0, "data": data})


def test_rewards_by_prompt_are_little_endian_floats_with_gaps() -> None:
    text = packed({0: 0.5, 2: 1.0}, 4)
    assert base64.b64decode(text)[:4] == struct.pack("<f", 0.5)
    assert len(base64.b64decode(text)) == 16
    assert unpacked(text) == {0: 0.5, 2: 1.0}


def test_other_events_hold_no_report() -> None:
    assert EvaluationReport.in_event(event().model_copy(update={"event": "step"})) is None


def test_what_was_asked_differs_by_everything_that_changes_prompts_rewards_or_sampling() -> None:
    def asked(environment: dict[str, object] | None = None, **evaluation: object) -> Asked:
        base = {"name": "reasoning_gym:gcd", "options": {"a": 1, "b": 2}}
        raw = {"name": "n", "tenant": "t", "pool": "p", "steps": 1, "environment": base | (environment or {})}
        spec = parse_spec(raw | {"evaluation": {"every": 1, **evaluation}})  # pyright: ignore[reportArgumentType]
        return Asked.by(spec, spec.evaluation.protocols[0])

    same = asked()
    assert asked({"options": {"b": 2, "a": 1}}) == same
    assert asked({"options": {"a": 1}}, options={"b": 2}) == same
    assert asked(prompts=9) == same
    different = [asked(seed=1), asked(temperature=1.0), asked(options={"a": 2}), asked({"weights": {"score": 2.0}}), asked({"name": "x:y"})]
    assert all(other != same for other in different)
