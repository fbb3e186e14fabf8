"""Schemas, arguments and answers of tools that are odd, and calls that are none."""

from typing import Any

import pytest

from common.tool_calls import Thoughts
from env_svc.calls import Continued, Failed, OpenCall, Scored, StepCall
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.tools.tool import Arguments, CallError, Tool
from env_svc.tools.toolbox import validated
from tests.env.tools.tables import PARROT, TALK, Table, environment_of, texts
from tests.env.tools.toy_tools import Parrot

HALF = b"caf\xe9".decode("utf-8", "surrogateescape")
ANSWERS: dict[str, tuple[Any, str]] = {
    "number": (42, "42"),
    "object": ({"rows": [1, 2], "é": None}, '{"rows": [1, 2], "é": null}'),
    "nothing": (None, ""),
    "truth": (True, "true"),
    "list": (["a", 1.5], '["a", 1.5]'),
    "set": ({1}, "[1]"),
    "message": (ChatMessage(role="user", content="hi"), '{"role": "user", "content": "hi", "name": null}'),
    "half": (f"{HALF} \ud83d\ude00", "caf\ufffd 😀"),
    "halves inside": ({"name": HALF}, '{"name": "caf\ufffd"}'),
}
NO_ANSWERS = {"object of a class": object(), "circle": []}
NO_ANSWERS["circle"].append(NO_ANSWERS["circle"])  # pyright: ignore


class Teller(Tool):
    """Answers with the value that it is asked for."""

    name, description = "teller", "Tells."
    parameters = {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}

    async def call(self, arguments: Arguments) -> object:
        if arguments["of"] == "refusal":
            raise CallError(f"no {HALF}")
        return {**{name: given for name, (given, _) in ANSWERS.items()}, **NO_ANSWERS}[str(arguments["of"])]


class Taker(Tool):
    """Says what it was given."""

    name, description = "taker", "Takes."
    parameters = {
        "type": "object",
        "properties": {
            "value": True,
            "count": {"type": "integer"},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "tree": {"$ref": "#/$defs/Tree"},
        },
        "$defs": {"Tree": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/Tree"}}}},
    }

    async def call(self, arguments: Arguments) -> object:
        return arguments


class Plays(Environment[None]):
    """Plays a tool with a parameter of any type itself, and says what it was called with."""

    async def open(self, index: int, seed: int) -> Opening[None]:
        schema: dict[str, Any] = {"type": "object", "properties": {"value": True, "n": True}, "required": ["value", "n"]}
        return Opening([ChatMessage(role="user", content="?")], None, tools=[{"name": "look", "parameters": schema}])

    async def step(self, state: None, reply: Reply) -> Turn[None]:
        return Finish(float(len(reply.calls)))


TELLER, TAKER, PLAYS = (f"tests.env.tools.test_tool_values:{name}" for name in ("Teller", "Taker", "Plays"))


@pytest.mark.parametrize("of", ANSWERS)
async def test_answer_of_any_type_is_read_as_json(table: Table, of: str) -> None:
    assert texts(await table.say(environment_of(TALK, TELLER), f"<teller>{of}</teller>")) == [ANSWERS[of][1]]


@pytest.mark.parametrize("of", NO_ANSWERS)
async def test_answer_that_is_not_json_voids_with_its_type(table: Table, of: str) -> None:
    outcome = await table.say(environment_of(TALK, TELLER), f"<teller>{of}</teller>")
    named = f"tool 'teller' failed: TypeError: its answer, a {type(NO_ANSWERS[of]).__name__}, is neither text nor JSON: "
    assert isinstance(outcome, Failed) and outcome.reason.startswith(named)


async def test_refusal_with_half_a_character_is_read(table: Table) -> None:
    assert texts(await table.say(environment_of(TALK, TELLER), "<teller>refusal</teller>")) == ["Error: no caf\ufffd"]


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ('{"name": "taker", "arguments": {"value": {"a": [1]}}}', '{"value": {"a": [1]}}'),
        ("<function=taker><parameter=value>\n3\n</parameter><parameter=limit>\n3\n</parameter></function>", '{"value": "3", "limit": 3}'),
        ('{"name": "taker", "arguments": {"count": 3.0}}', "Error: taker: 'count': 3.0 is not of type 'integer'"),
        ("<function=taker><parameter=count>3.0</parameter></function>", "Error: taker: 'count': '3.0' is not of type 'integer'"),
        ('{"name": "taker", "arguments": {"count": true}}', "Error: taker: 'count': True is not of type 'integer'"),
        ('{"name": "taker", "arguments": {"limit": 3.0}}', "Error: taker: 'limit': 3.0 is not valid under any of the given schemas"),
        ('{"name": "taker", "arguments": {"count": 1' + "0" * 30 + "}}", "Error: the arguments of the tool call cannot be passed on: "),
        (
            '{"name": "taker", "arguments": {"tree": ' + '{"inner": ' * 400 + "{}" + "}" * 402,
            "Error: taker: these arguments cannot be checked: RecursionError",
        ),
    ],
)
async def test_arguments_reach_the_tool_or_the_policy_reads_why_not(table: Table, reply: str, answer: str) -> None:
    [text] = texts(await table.say(environment_of(TALK, TAKER), f"<tool_call>{reply}</tool_call>"))
    assert text.startswith(answer)


async def test_hello_is_no_call_of_a_tool_with_a_boolean_schema(table: Table) -> None:
    assert isinstance(await table.say(environment_of(TALK, TAKER), "hello"), Scored)
    assert isinstance(await table.say(environment_of(PLAYS), "hello"), Scored)
    called = await table.say(environment_of(PLAYS), "<tool_call><function=look><parameter=value>3</parameter></function></tool_call>")
    assert isinstance(called, Scored) and called.reward == 1.0


async def test_call_of_an_environments_own_tool_that_cannot_travel_is_answered(table: Table) -> None:
    reply = '<tool_call>{"name": "look", "arguments": {"value": 1' + "0" * 30 + "}}</tool_call>"
    assert texts(await table.say(environment_of(PLAYS), reply)) == [
        "Error: the arguments of the tool call cannot be passed on: Integer value out of range"
    ]


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"properties": {"screen": {"$ref": "#/$defs/Screen"}}}, "refer to '#/$defs/Screen', which is not in them"),
        ({"properties": {"a": {"items": {"anyOf": [{"$ref": "https://example.org/a"}]}}}}, "refer to 'https://example.org/a'"),
        ({"$defs": {"A": {"$ref": "#/$defs/B"}}}, "refer to '#/$defs/B'"),
        (True, "are True, expected the JSON schema of an object"),
        ({"properties": {"a": {"pattern": "["}}}, "are not a JSON schema"),
        ({"properties": {"a": {"description": HALF}}}, "the schema of tool 'parrot' is not JSON"),
        ({"properties": {"a": {"maximum": float("nan")}}}, "the schema of tool 'parrot' is not JSON"),
        ({"properties": {"a": {"default": object()}}}, "the schema of tool 'parrot' is not JSON"),
    ],
)
def test_schema_that_cannot_be_used_is_refused_by_the_tools_name(parameters: Any, reason: str) -> None:
    tool = Parrot()
    tool.parameters = parameters
    with pytest.raises(WrongOptions, match="parrot") as caught:
        validated(tool)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"$ref": {"type": "string"}, "const": {"const": {"$ref": "#/nowhere"}}}},
        {"properties": {"tree": {"$ref": "#"}}},
        {"$id": "https://example.org/tool", "properties": {"a": {"$ref": "#there"}}, "$defs": {"a": {"$anchor": "there"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a/b": {}},
            "properties": {"a": {"$ref": "#/definitions/a~1b"}},
        },
    ],
)
def test_schema_whose_references_lead_somewhere_is_taken(parameters: dict[str, Any]) -> None:
    tool = Parrot()
    tool.parameters = parameters
    assert validated(tool).error_in({"tree": {"tree": {}}}) is None


REHEARSED = "Perhaps <parrot>hello</parrot> would do, but first"


@pytest.mark.parametrize(
    ("text", "marks", "answers"),
    [
        (REHEARSED, ("<think>", "</think>"), []),
        (f"{REHEARSED}</think> So: <parrot>hi</parrot>", ("<think>", "</think>"), ["hi"]),
        (f"{REHEARSED}[/THINK]<parrot>hi</parrot>[THINK]<parrot>ho</parrot>", ("[THINK]", "[/THINK]"), ["hi"]),
    ],
)
async def test_call_rehearsed_in_thoughts_that_the_template_opened_is_not_made(
    table: Table, text: str, marks: tuple[str, str], answers: list[str]
) -> None:
    environment = environment_of(TALK, PARROT)
    state = (await table.opened(environment)).state
    for truncated in (False, True):
        reply = Reply(text, truncated, thoughts=Thoughts(*marks, begins_inside=True))
        (outcome,) = await table.play(environment, StepCall(0, state, reply))
        if answers:
            assert isinstance(outcome, Continued) and texts(outcome) == answers
        else:
            assert outcome == Scored(0.0, {"tool_calls": 0.0, "tool_errors": 0.0, "steps": 1.0})


async def test_wrong_schema_is_an_objection_to_the_task(table: Table) -> None:
    (outcome,) = await table.play(environment_of(TALK, "tests.env.tools.test_tool_values:Dangling"), OpenCall(0, 0))
    assert outcome == Failed("the parameters of tool 'dangling' refer to '#/$defs/Screen', which is not in them")


class Dangling(Taker):
    name = "dangling"
    parameters = {"type": "object", "properties": {"screen": {"$ref": "#/$defs/Screen"}}}
