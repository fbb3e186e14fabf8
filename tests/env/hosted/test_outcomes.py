"""Outcomes that a host reports are held to the contract on the service's side."""

import math

import pytest

from common.messages import ChatMessage
from env_svc.calls import MAX_FAILURE_CHARS, Continued, Failed, OpenCall, Opened, Scored, StepCall
from env_svc.contract import MAX_STATE_BYTES, Reply
from env_svc.hosted.wire import MAX_COMPONENTS, checked_outcome

OPEN, STEP = OpenCall(0, 0), StepCall(0, b"", Reply("word"))
SAID = [ChatMessage(role="user", content="?")]


def test_outcome_within_the_contract_passes() -> None:
    for call, outcome in (
        (OPEN, Opened(SAID, [], b"x" * MAX_STATE_BYTES)),
        (STEP, Continued(SAID, b"")),
        (OPEN, Opened(SAID, [{"name": "x", "parameters": {"properties": {"y": {"type": "string"}}, "required": ["y"]}}], b"")),
        (OPEN, Opened(SAID, [{"type": "function", "function": {"name": "x", "description": "y"}}], b"", ("calculator",))),
        (STEP, Scored(1.0, {str(number): 0.0 for number in range(MAX_COMPONENTS)})),
        (OPEN, Failed("no disk", is_infrastructure=True)),
    ):
        assert checked_outcome(outcome, call) == outcome


@pytest.mark.parametrize(
    ("call", "reported", "problem"),
    [
        (OPEN, Scored(1.0, {}), "OpenCall was answered with Scored"),
        (STEP, Opened(SAID, [], b""), "StepCall was answered with Opened"),
        (STEP, STEP, "StepCall was answered with StepCall"),
        (STEP, Scored(math.nan, {}), "not finite"),
        (STEP, Scored(1e13, {}), "beyond 1e"),
        (STEP, Scored(1.0, {"x": math.inf}), "not finite"),
        (STEP, Scored(1.0, {str(number): 0.0 for number in range(MAX_COMPONENTS + 1)}), "1025 components"),
        (STEP, Scored(1.0, {"a\0b": 1.0}), "is no name"),
        (STEP, Scored(1.0, {"x" * 201: 1.0}), "is no name"),
        (STEP, Continued([], b""), "Continued has no messages"),
        (STEP, Continued(SAID, b"\xc7\x01\x4dx"), "a state is a MessagePack extension"),
        (STEP, Continued(SAID, b"\xd4\x4dx"), "a state is a MessagePack extension"),
        (OPEN, Opened(SAID, [{"name": str(number)} for number in range(257)], b""), "257 tools"),
        (OPEN, Opened(SAID, [{"function": 7}], b""), "validation error"),
        (OPEN, Opened(SAID, [{"name": "x", "parameters": {"required": [7]}}], b""), "validation error"),
        (OPEN, Opened(SAID, [], b"x" * (MAX_STATE_BYTES + 1)), "a state has 262145 bytes"),
    ],
)
def test_outcome_beyond_the_contract_is_refused(call: OpenCall | StepCall, reported: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_outcome(reported, call)


def test_reason_of_a_failure_is_cut() -> None:
    cut = checked_outcome(Failed("x" * 10_000), STEP)
    assert isinstance(cut, Failed) and len(cut.reason) == MAX_FAILURE_CHARS
