"""Values that environments give from other libraries and other encodings, in this process, in workers and on the way to a host."""

from contextlib import aclosing
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from common import spec
from common.fairness.fair_queue import Claimant
from common.formats.strict_json import whole
from common.messages import ChatMessage
from env_svc.calls import Call, Continued, Failed, OpenCall, Opened, Outcome, Scored, StepCall
from env_svc.contract import Continue, Environment, Finish, Opening, Reply, Turn
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted import wire
from env_svc.hosted.wire import checked_outcome

HALF, MENDED = b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\ufffd"
REWARDS: dict[str, tuple[Any, float]] = {
    "numpy.bool_": (np.bool_(True), 1.0),
    "numpy.all": (np.all([1, 0]), 0.0),
    "float32": (np.float32(0.5), 0.5),
    "int64": (np.int64(2), 2.0),
    "an array of no dimension": (np.array(3), 3.0),
    "a tensor": (torch.tensor(0.25), 0.25),
    "a truth of torch": (torch.tensor(True), 1.0),
    "Decimal": (Decimal("0.5"), 0.5),
    "Fraction": (Fraction(1, 4), 0.25),
    "True": (True, 1.0),
}
NO_REWARDS: dict[str, tuple[Any, str]] = {
    "a text": ("1.0", "reward is '1.0', expected a number"),
    "None": (None, "reward is None, expected a number"),
    "two numbers": (np.array([1, 2]), "reward is array([1, 2]), expected a number"),
    "a complex number": (1j, "reward is 1j, expected a number"),
    "too large": (10**400, "expected a finite number"),
    "not a number": (np.float64("nan"), "reward is nan, expected a finite number"),
    "no Decimal": (Decimal("NaN"), "reward is NaN, expected a finite number"),
}
STATES: dict[str, tuple[Any, str]] = {
    "int64": (
        {"a": [1, {"count": np.int64(3)}]},
        "cannot be packed as MessagePack: state['a'][1]['count']: can not serialize 'numpy.int64'",
    ),
    "half a character": ({"name": HALF}, "cannot be packed as MessagePack: state['name']: 'utf-8' codec can't encode character '\\udce9'"),
    "large": ([10**30], "cannot be packed as MessagePack: state[0]: "),
}
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"value": True}, "required": ["value"]}}


class Odd(Environment[dict[str, str]]):
    """Does what the reply says."""

    async def open(self, index: int, seed: int) -> Opening[dict[str, str]]:
        if index == 1:
            raise ValueError(f"no file {HALF}")
        tools: list[Any] = [TOOL, {"name": "look", "description": HALF}, {"name": "look", "parameters": np.int64(1)}, {"function": 3}]
        return Opening([ChatMessage(role="user", content=HALF)], {}, tools=[] if index == 0 else [tools[index - 2]])

    async def step(self, state: dict[str, str], reply: Reply) -> Turn[Any]:
        word, _, name = reply.text.partition(" ")
        match word:
            case "reward":
                return Finish((REWARDS | NO_REWARDS)[name][0])
            case "part":
                return Finish(0.0, {HALF: REWARDS[name][0]})
            case "state":
                return Continue([ChatMessage(role="user", content="more")], STATES[name][0])
            case "raise":
                raise ValueError(f"no file {HALF}")
            case _:
                return Continue([ChatMessage(role="user", content=HALF), ChatMessage(role="user", content="fine")], state)


class ComputingOdd(Odd):
    cpu_bound = True


@pytest.fixture(params=["Odd", "ComputingOdd"])
def where(request: pytest.FixtureRequest) -> str:
    return f"tests.env.test_borders:{request.param}"


async def played(workers: Workers, where: str, *calls: Call) -> list[Outcome]:
    """Outcomes, each held to what a host may report after its way through a frame."""
    environment = spec.EnvironmentSection.model_validate({"name": where})
    batches = EnvironmentExecutor(workers, call_timeout_s=60.0).run(Claimant("a", "task-a"), environment, calls, 60.0)
    async with aclosing(batches):
        found = dict(chain.from_iterable([batch async for batch in batches]))
    for position, outcome in found.items():
        frame = msgpack.unpackb(wire.pack(wire.encode(outcome))[4:])
        assert checked_outcome(wire.decode(frame), calls[position]) == outcome
        for message in outcome.messages if isinstance(outcome, Opened | Continued) else ():
            message.model_dump_json()
    return [found[position] for position in range(len(calls))]


async def told(workers: Workers, where: str, *replies: str) -> list[Outcome]:
    return await played(workers, where, *(StepCall(0, b"\x80", Reply(reply)) for reply in replies))


async def test_numbers_of_any_library_are_rewards(workers: Workers, where: str) -> None:
    outcomes = await told(workers, where, *(f"reward {name}" for name in REWARDS))
    assert outcomes == [Scored(value, {}) for _, value in REWARDS.values()]
    outcomes = await told(workers, where, *(f"part {name}" for name in REWARDS))
    assert outcomes == [Scored(0.0, {MENDED: value}) for _, value in REWARDS.values()]


async def test_what_is_no_number_is_named(workers: Workers, where: str) -> None:
    outcomes = await told(workers, where, *(f"reward {name}" for name in NO_REWARDS))
    for outcome, (_, reason) in zip(outcomes, NO_REWARDS.values(), strict=True):
        assert isinstance(outcome, Failed) and reason in outcome.reason


async def test_part_of_a_state_that_cannot_travel_is_named(workers: Workers, where: str) -> None:
    outcomes = await told(workers, where, *(f"state {name}" for name in STATES))
    for outcome, (_, reason) in zip(outcomes, STATES.values(), strict=True):
        assert isinstance(outcome, Failed) and reason in outcome.reason


async def test_half_characters_become_a_mark(workers: Workers, where: str) -> None:
    [observed, failure] = await told(workers, where, "look", "raise")
    assert isinstance(observed, Continued) and [message.content for message in observed.messages] == [MENDED, "fine"]
    assert isinstance(failure, Failed) and failure.reason.endswith(f"ValueError: no file {MENDED}")
    [opened, failure] = [(await played(workers, where, OpenCall(row, 0)))[0] for row in (0, 1)]
    assert isinstance(opened, Opened) and opened.messages[0].content == MENDED
    assert isinstance(failure, Failed) and failure.reason.endswith(f"ValueError: no file {MENDED}")


async def test_schemas_of_an_opening_are_json(workers: Workers, where: str) -> None:
    [good, half, number, none] = [(await played(workers, where, OpenCall(row, 0)))[0] for row in (2, 3, 4, 5)]
    assert isinstance(good, Opened) and good.tools == [TOOL]
    reasons = [one.reason.partition("): ")[2] for one in (half, number, none) if isinstance(one, Failed)]
    assert reasons[0].startswith("Opening has a tool whose schema is not JSON: 'utf-8' codec can't encode character '\\udce9'")
    assert reasons[1:] == [
        "Opening has a tool whose schema is not JSON: Object of type int64 is not JSON serializable",
        "Opening has the tool {'function': 3}, expected a name or a schema",
    ]


def test_halves_that_belong_together_are_joined() -> None:
    assert whole("a\ud83d\ude00b\ud83dc\ude00") == "a😀b\ufffdc\ufffd"
    assert whole("é\u2028😀") == "é\u2028😀"
