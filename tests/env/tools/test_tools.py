"""Episodes with tools: who answers what, and what a tool that goes wrong becomes."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from common import spec
from common.tool_calls import find_calls
from env_svc.calls import Continued, Failed, FinalTurn, OpenCall, Outcome, Scored, StepCall
from env_svc.contract import Reply
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.tool_calls import LONG_CHARS, ToolCallExecutor
from env_svc.execution.tool_state import ToolState
from env_svc.execution.workers import Workers
from env_svc.tools.toolbox import Toolbox
from tests.env.tools.tables import COMPUTING, DOOR, EQUIPPED, PARROT, TALK, Table, environment_of, texts
from tests.env.tools.toy_tools import Parrot
from tests.support.waiting import eventually


@pytest.mark.parametrize("name", [TALK, COMPUTING])
async def test_call_is_answered_and_the_next_reply_goes_to_the_environment(table: Table, name: str) -> None:
    environment = environment_of(name, *([PARROT] if name == TALK else []))
    opened = await table.opened(environment)
    assert [tool["function"]["name"] for tool in opened.tools] == ["parrot"]  # pyright: ignore
    (asked,) = await table.play(environment, StepCall(0, opened.state, Reply("<parrot>hello</parrot>")))
    assert texts(asked) == ["hello"]
    assert isinstance(asked, Continued)
    (scored,) = await table.play(environment, StepCall(0, asked.state, Reply("done")))
    assert scored == Scored(1.0, {"tool_calls": 1.0, "tool_errors": 0.0, "steps": 1.0})


async def test_several_calls_are_made_at_once_and_answered_in_order(table: Table, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    text = f"<parrot>await-file {gate}</parrot><parrot>b</parrot>" + '<tool_call>{"name": "parrot", "arguments": {"text": "c"}}</tool_call>'
    playing = asyncio.ensure_future(table.say(environment_of(TALK, PARROT), text))
    await asyncio.sleep(0)
    gate.touch()
    assert texts(await playing) == [f"await-file {gate}", "b", "c"]


async def test_members_of_a_message_go_their_own_ways(table: Table) -> None:
    environment = environment_of(COMPUTING)
    state = (await table.opened(environment)).state
    replies = ["done", "<parrot>x</parrot>", "no", "<parrot>away far</parrot>"]
    outcomes = await table.play(environment, *(StepCall(0, state, Reply(reply)) for reply in replies))
    assert [type(outcome) for outcome in outcomes] == [Scored, Continued, Scored, Failed]


async def test_mistakes_are_answered_so_that_the_policy_can_learn(table: Table) -> None:
    environment = environment_of(TALK, PARROT, "calculator")
    replies = {
        '<tool_call>{"name": "parot", "arguments": {}}</tool_call>': "there is no tool 'parot'; the tools are: calculator, parrot",
        '<tool_call>{"name": "parrot", "arguments": {"txt": "x"}}</tool_call>': "parrot: 'text' is a required property",
        '<tool_call>{"name": "parrot", "arguments": {"text": 1}}</tool_call>': "parrot: 'text': 1 is not of type 'string'",
        "<tool_call>parrot(1)</tool_call>": "is not JSON",
        "<parrot>refuse not today</parrot>": "Error: not today",
        "<calculator>1/0</calculator>": "Error: ZeroDivisionError: division by zero",
    }
    for reply, part in replies.items():
        asked = await table.say(environment, reply)
        assert part in texts(asked)[0]
        assert isinstance(asked, Continued)
        (scored,) = await table.play(environment, StepCall(0, asked.state, Reply("done")))
        assert scored == Scored(1.0, {"tool_calls": 0.0, "tool_errors": 1.0, "steps": 1.0})


async def test_without_tools_nothing_is_looked_for(table: Table) -> None:
    environment = environment_of()
    opened = await table.opened(environment)
    assert (opened.tools, msgpack.unpackb(opened.state)) == ([], {"steps": 0})
    assert await table.say(environment, "<parrot>hello</parrot>") == Scored(0.0, {"steps": 1.0})


async def test_schemas_stay_out_of_the_prompt_of_a_model_that_knows_them(table: Table) -> None:
    environment = environment_of(TALK, PARROT, list_tools=False)
    assert (await table.opened(environment)).tools == []
    assert texts(await table.say(environment, "<parrot>hello</parrot>")) == ["hello"]


async def test_environment_brings_a_tool_of_its_own(table: Table) -> None:
    assert texts(await table.say(environment_of(EQUIPPED, options={"times": 3}), "<parrot>ho</parrot>")) == ["hohoho"]


async def test_opening_asks_for_tools_by_name_and_plays_others_itself(table: Table) -> None:
    environment = environment_of(DOOR)
    opened = await table.opened(environment)
    assert [tool["function"]["name"] for tool in opened.tools] == ["parrot", "open_door"]  # pyright: ignore
    asked = await table.say(environment, "<parrot>hello</parrot>")
    assert texts(asked) == ["hello"]
    assert isinstance(asked, Continued)
    (scored,) = await table.play(environment, StepCall(0, asked.state, Reply("<open_door>gold</open_door>")))
    assert scored == Scored(1.0, {"tool_calls": 1.0, "tool_errors": 0.0})
    (scored,) = await table.play(environment, StepCall(0, asked.state, Reply("open_door gold")))
    assert isinstance(scored, Scored)
    assert scored.reward == 0.0


async def test_calls_beyond_the_limit_are_answered_with_the_limit(table: Table) -> None:
    asked = await table.say(environment_of(TALK, PARROT), "<parrot>x</parrot>" * 4, limits=spec.Limits(max_calls=2))
    assert texts(asked) == ["x", "x", *["not called: at most 2 calls are made for one reply"] * 2]


async def test_long_answer_is_cut(table: Table) -> None:
    environment = environment_of(TALK, {"name": PARROT, "options": {"times": 1000}})
    (answer,) = texts(await table.say(environment, "<parrot>xyz</parrot>", limits=spec.Limits(max_answer_chars=50)))
    assert (len(answer), answer[-21:]) == (50, "... (3000 characters)")


@pytest.mark.parametrize(
    ("rule", "outcome"),
    [
        ("score", Scored(0.25, {"tool_calls": 0.0, "tool_errors": 0.0, "out_of_turns": 1.0})),
        ("zero", Scored(0.0, {"tool_calls": 0.0, "tool_errors": 0.0, "out_of_turns": 1.0})),
        ("void", Failed("the episode used up its turns, and limits.at_limit is 'void'")),
    ],
)
async def test_calls_of_the_last_turn_are_not_made(table: Table, tmp_path: Path, rule: Any, outcome: Outcome) -> None:
    text = f"<parrot>await-file {tmp_path / 'never'}</parrot>"
    assert await table.say(environment_of(TALK, PARROT), text, last=FinalTurn("turns", rule)) == outcome


async def test_reply_that_was_cut_short_is_not_blamed_for_its_open_end(table: Table) -> None:
    environment = environment_of(TALK, PARROT)
    assert isinstance(await table.say(environment, "so <parrot>hel", truncated=True), Scored)
    assert texts(await table.say(environment, "<parrot>a</parrot> so <parrot>hel", truncated=True)) == ["a"]


@pytest.mark.parametrize(("rule", "reward"), [("score", 0.25), ("zero", 0.0), ("void", None)])
async def test_turn_that_takes_too_long_ends_the_episode_as_the_task_says(
    table: Table, tmp_path: Path, rule: str, reward: float | None
) -> None:
    limits = spec.Limits.model_validate({"max_turn_s": 0.2, "at_limit": rule})
    outcome = await table.say(environment_of(TALK, PARROT), f"<parrot>await-file {tmp_path / 'never'}</parrot>", limits=limits)
    if reward is None:
        assert outcome == Failed("the episode used up its seconds, and limits.at_limit is 'void'")
    else:
        assert outcome == Scored(reward, {"tool_calls": 0.0, "tool_errors": 0.0, "out_of_seconds": 1.0})


async def test_slow_step_of_the_environment_ends_the_episode_too(table: Table) -> None:
    environment = environment_of("tests.env.toys:Countdown", options={"step_s": 60.0})
    outcome = await table.say(environment, "3", limits=spec.Limits(max_turn_s=0.2))
    assert outcome == Scored(0.0, {"out_of_seconds": 1.0})


@pytest.mark.parametrize(
    ("reply", "reason", "is_infrastructure"),
    [
        ("away the parrot has flown", "tool 'parrot' is unavailable: the parrot has flown", True),
        ("sleep 60", "tool 'parrot' did not answer within 0.2 s", True),
        ("break x", "tool 'parrot' failed: ZeroDivisionError: x", False),
    ],
)
async def test_tool_that_fails_voids_the_attempt(table: Table, reply: str, reason: str, is_infrastructure: bool) -> None:
    limits = spec.Limits(tool_timeout_s=0.2)
    outcome = await table.say(environment_of(TALK, PARROT), f"<parrot>{reply}</parrot><parrot>fine</parrot>", limits=limits)
    assert outcome == Failed(reason, is_infrastructure)


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ("calculater", "no tool 'calculater'; did you mean 'calculator'?"),
        ("tests.env.tools.toy_tools:Parot", "tool 'tests.env.tools.toy_tools:Parot' cannot be imported: AttributeError"),
        ("tests.env.tools.toy_tools:Talk", "'tests.env.tools.toy_tools:Talk' is not a tool: expected a subclass"),
        ("subprocess:Popen", "'subprocess:Popen' is not a tool"),
        ({"name": PARROT, "options": {"time": 2}}, f"tool '{PARROT}' has no option 'time'; did you mean 'times'?"),
        ({"name": PARROT, "options": {"times": "two"}}, "option 'times': must be a whole number, not 'two'"),
        ({"name": PARROT, "options": {"times": 0}}, "times is 0, expected 1 or more"),
        ({"name": "calculator", "options": {"digits": 3}}, "tool 'calculator' has no option 'digits'"),
        ("tests.env.tools.toy_tools:Nameless", "a tool cannot be called 'has spaces'"),
        ("tests.env.tools.toy_tools:Schemeless", "the parameters of tool 'parrot' are not a JSON schema"),
    ],
)
async def test_wrong_tool_is_one_clear_objection(table: Table, tool: str | dict[str, Any], reason: str) -> None:
    (outcome,) = await table.play(environment_of(TALK, tool), OpenCall(0, 0))
    assert isinstance(outcome, Failed)
    assert reason in outcome.reason


def cage(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"name": "tests.env.tools.toy_tools:Cage", "options": {"gate": str(tmp_path / "gate"), "trace": str(tmp_path / "trace"), **more}}


async def test_no_task_waits_for_another_tasks_tools(table: Table, tmp_path: Path) -> None:
    hung = [asyncio.ensure_future(table.opened(environment_of(TALK, cage(tmp_path)))) for _ in range(3)]
    await eventually((tmp_path / "trace").exists)
    assert len((await table.opened(environment_of(TALK, "calculator"))).tools) == 1
    assert not any(one.done() for one in hung)
    (tmp_path / "gate").touch()
    assert [len(one.tools) for one in await asyncio.gather(*hung)] == [1, 1, 1]
    assert (tmp_path / "trace").read_text() == "tried\n"


async def test_unavailable_server_is_not_tried_once_for_every_message(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.caches.FAILURE_TTL_S", 600.0)
    environment = environment_of(TALK, cage(tmp_path, away=True))
    outcomes = await asyncio.gather(*(table.play(environment, OpenCall(row, 0)) for row in range(20)))
    outcomes.append(await table.play(environment, OpenCall(20, 0)))
    assert outcomes == [[Failed("the cage is empty", is_infrastructure=True)]] * 21
    assert (tmp_path / "trace").read_text() == "tried\n"


async def test_tools_are_waited_for_no_longer_than_for_a_call(workers: Workers, tmp_path: Path) -> None:
    toolbox = Toolbox()
    table = Table(ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s=0.2), toolbox))
    (late,) = await table.play(environment_of(COMPUTING, cage(tmp_path)), OpenCall(0, 0))
    assert late == Failed("the tools were not ready within 0.2 s", is_infrastructure=True)
    await toolbox.close()


async def test_tool_of_an_opening_is_held_to_the_operators_list(workers: Workers) -> None:
    toolbox = Toolbox()
    table = Table(ToolCallExecutor(EnvironmentExecutor(workers, call_timeout_s=60.0), toolbox))
    (outcome,) = await table.play(environment_of(DOOR), OpenCall(0, 0))
    assert isinstance(outcome, Failed) and outcome.reason.startswith(f"tool '{PARROT}' is not allowed here")
    forged = ToolState.at_opening([PARROT], []).wrap(b"\xc0")
    (outcome,) = await table.play(environment_of(TALK), StepCall(0, forged, Reply("<parrot>Hi</parrot>")))
    assert isinstance(outcome, Failed) and outcome.reason.startswith(f"tool '{PARROT}' is not allowed here")
    await toolbox.close()


@pytest.mark.parametrize(("chars", "is_apart"), [(100, False), (LONG_CHARS + 1, True)])
async def test_long_reply_is_parsed_beside_the_event_loop(
    table: Table, chars: int, is_apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def recorded(text: str, tools: Any, thoughts: Any) -> Any:
        threads.append(threading.get_ident())
        return find_calls(text, tools, thoughts)

    monkeypatch.setattr("env_svc.execution.tool_calls.find_calls", recorded)
    outcome = await table.say(environment_of(TALK, PARROT), "x" * chars + "<parrot>Hi</parrot>")
    assert isinstance(outcome, Continued) and "Hi" in outcome.messages[0].content
    assert [one != threading.get_ident() for one in threads] == [is_apart]


async def test_two_tools_of_one_name_are_refused(table: Table) -> None:
    (outcome,) = await table.play(environment_of(TALK, PARROT, "tests.env.tools.toy_tools:Aviary"), OpenCall(0, 0))
    assert outcome == Failed("two tools are called 'parrot'")
    opened = await table.opened(environment_of(TALK, "tests.env.tools.toy_tools:Aviary"))
    assert len(opened.tools) == 2


def test_notes_travel_around_any_state() -> None:
    notes = ToolState.at_opening(
        ["calculator"], [{"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}]
    ).counting(2, 1)
    for state in (b"\x80", msgpack.packb(None), msgpack.packb({"a": [1, b"\xc7"]}), b"\xc1", b""):
        assert ToolState.unwrap(state) == (None, state)
        assert ToolState.unwrap(notes.wrap(state)) == (notes, state)
    assert notes.own == {"open_door": {"type": "object"}}


async def test_toolbox_shares_a_tool_and_closes_it() -> None:
    toolbox = Toolbox()
    first, second = [await toolbox.tool_set(["calculator"]) for _ in range(2)]
    assert first["calculator"].tool is second["calculator"].tool
    assert (await toolbox.tool_set([Parrot()]))["parrot"].error_in({}) == "parrot: 'text' is a required property"
    await toolbox.close()
    reopened = await toolbox.tool_set(["calculator"])
    assert reopened["calculator"].tool is not first["calculator"].tool
    await toolbox.close()
