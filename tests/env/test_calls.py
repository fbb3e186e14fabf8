"""One call of an environment: whatever goes wrong in it is a value with a reason."""

import asyncio

import msgpack
import pytest

from env_svc.calls import Call, Continued, Failed, FinalTurn, OpenCall, Opened, Outcome, Scored, StepCall, perform
from env_svc.contract import MAX_STATE_BYTES, Reply
from env_svc.registry import build

OBEDIENT = "tests.env.toys:Obedient"
OUT_OF_TURNS = FinalTurn("turns")
STATE = msgpack.packb({"row": 2})


async def play(reply: str, *, name: str = OBEDIENT, last: FinalTurn | None = None, state: bytes = STATE) -> Outcome:
    return await call(StepCall(2, state, Reply(reply), last), name)


async def call(what: Call, name: str = OBEDIENT) -> Outcome:
    return await perform(build(name, {}), name, what)


async def test_open_gives_messages_and_packed_state() -> None:
    opened = await call(OpenCall(row=2, seed=0))
    assert isinstance(opened, Opened)
    assert [message.content for message in opened.messages] == ["Do it."]
    assert msgpack.unpackb(opened.state) == {"row": 2}


async def test_finish_gives_reward_and_components() -> None:
    assert await play("reward 0.25") == Scored(0.25, {"length": 4.0})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("raise oops", "environment 'tests.env.toys:Obedient' failed on row 2: RuntimeError: oops"),
        ("exit", "failed on row 2: SystemExit: 3"),
        ("cancel", "it cancelled itself"),
        ("reward nan", "reward is nan, expected a finite number"),
        ("reward inf", "reward is inf, expected a finite number"),
        ("component -inf", "component 'part' is -inf, expected a finite number"),
        ("reward -1e200", "environment 'tests.env.toys:Obedient' (row 2): reward is -1e+200, expected a finite number of at most 1e+12"),
        ("component 1.7e308", "component 'part' is 1.7e+308, expected a finite number of at most 1e+12"),
        ("string", "reward is '1.0', expected a number"),
        ("nothing", "step returned NoneType, expected Continue or Finish"),
        ("silent", "Continue has no messages"),
        ("object", "its state cannot be packed as MessagePack"),
        (f"big {MAX_STATE_BYTES}", f"its state has {MAX_STATE_BYTES + 5} bytes, at most {MAX_STATE_BYTES} can travel"),
    ],
)
async def test_environments_fault_is_a_failure_that_says_what(reply: str, reason: str) -> None:
    outcome = await play(reply)
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason
    assert not outcome.is_infrastructure


async def test_unavailable_is_an_infrastructure_failure() -> None:
    outcome = await play("unavailable")
    assert outcome == Failed(f"environment '{OBEDIENT}' is unavailable (row 2): as requested", is_infrastructure=True)


async def test_failure_reason_is_bounded() -> None:
    outcome = await play("raise " + "x" * 10_000)
    assert isinstance(outcome, Failed)
    assert len(outcome.reason) == 500


async def test_damaged_state_is_a_failure() -> None:
    assert isinstance(await play("reward 1", state=b"\xc1"), Failed)


async def test_cancellation_from_outside_is_not_a_failure() -> None:
    runner = asyncio.ensure_future(play("sleep 60"))
    await asyncio.sleep(0)
    runner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runner


async def test_last_turn_is_concluded_by_the_environment() -> None:
    state = msgpack.packb({"next": 3})
    going_on = await play("3", name="tests.env.toys:Countdown", state=state)
    assert isinstance(going_on, Continued)
    assert msgpack.unpackb(going_on.state) == {"next": 2}
    assert await play("3", name="tests.env.toys:Countdown", state=state, last=OUT_OF_TURNS) == Scored(0.0, {"out_of_turns": 1.0})
    assert await play("3", name="tests.env.toys:Lenient", state=state, last=OUT_OF_TURNS) == Scored(0.5, {"out_of_turns": 1.0, "left": 2.0})
