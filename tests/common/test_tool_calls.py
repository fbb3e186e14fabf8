"""Tool calls in text: three ways to write them, and what is said about those that are not well formed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.tool_calls import MalformedCall, Schema, ToolCall, find_calls, text_parameter

TEXT: Schema = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TWO: Schema = {"type": "object", "properties": {"query": {"type": "string"}, "k": {"type": "integer"}}, "required": ["query"]}
PAIR: Schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]}
TOOLS = {"calculator": TEXT, "search": TWO, "pair": PAIR}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("The answer is 4.", []),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "12*7"}}</tool_call>', [("calculator", {"expression": "12*7"})]),
        ('<tool_call>\n{"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}\n</tool_call>', [("search", {"query": "a"})]),
        ('<tool_call>{"name": "anything"}</tool_call>', [("anything", {})]),
        ('<tool_call>{"name": "search", "arguments": {"query": "\\ud83d\\ude00"}}</tool_call>', [("search", {"query": "\U0001f600"})]),
        ("Let me see. <calculator>12*7</calculator> and", [("calculator", {"expression": "12*7"})]),
        ("<calculator> (1 < 2)\n </calculator>", [("calculator", {"expression": "(1 < 2)"})]),
        ("<search>dams</search>", [("search", {"query": "dams"})]),
        ("<pair>x</pair> has two parameters, <b>bold</b> is no tool", []),
        (
            "<tool_call>\n<function=search>\n<parameter=query>\ndams\nand rivers\n</parameter>\n<parameter=k>\n3\n</parameter>\n"
            "</function>\n</tool_call>",
            [("search", {"query": "dams\nand rivers", "k": 3})],
        ),
        ("<tool_call><function=search><parameter=k>three</parameter></function></tool_call>", [("search", {"k": "three"})]),
        (
            '<calculator>1</calculator><tool_call>{"name": "search", "arguments": {"query": "<calculator>2</calculator>"}}</tool_call>'
            "<calculator>3</calculator>",
            [("calculator", {"expression": "1"}), ("search", {"query": "<calculator>2</calculator>"}), ("calculator", {"expression": "3"})],
        ),
        ("<think>I could <calculator>1</calculator></think><calculator>2</calculator>", [("calculator", {"expression": "2"})]),
        ("I could <calculator>1</calculator> </think> 4", []),
        ("<think>still at it <calculator>1</calculator>", []),
    ],
)
def test_calls_are_found(text: str, calls: list[tuple[str, dict[str, object]]]) -> None:
    assert find_calls(text, TOOLS) == [ToolCall(name, arguments) for name, arguments in calls]  # pyright: ignore


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<calculator>12*7", "<calculator> is not closed: write <calculator>...</calculator>"),
        ('<tool_call>{"name": "calculator"', "<tool_call> is not closed: write <tool_call>"),
        ("<tool_call>12*7 = </tool_call>", "the tool call '12*7 =' is not JSON (Extra data)"),
        ("<tool_call>{'name': 'calculator'}</tool_call>", "is not JSON (Expecting property name"),
        ('<tool_call>{"tool": "calculator"}</tool_call>', "has no name"),
        ("<tool_call>7</tool_call>", "has no name"),
        ('<tool_call>{"name": "calculator", "arguments": [1]}</tool_call>', "are not an object"),
        ('<tool_call>{"name": "calculator", "arguments": "12*7"}</tool_call>', "are not an object"),
        (f"<tool_call>{'[' * 50_000}</tool_call>", "is not JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "is not JSON (NaN is no number of JSON)"),
        ('<tool_call>{"name": "add", "arguments": {"a": -Infinity}}</tool_call>', "(-Infinity is no number of JSON)"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', "(1e999 is too large)"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>', "(the key 'a' is given twice)"),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": NaN}"}</tool_call>', "are not an object"),
        (
            '<tool_call>{"name": "calculator", "arguments": {"expression": "\\ud83d"}}</tool_call>',
            "'calculator' holds text that is not Unicode",
        ),
        ('<tool_call>{"name": "calculator", "arguments": "{\\"\\\\udc00\\": 1}"}</tool_call>', "holds text that is not Unicode"),
        ('<tool_call>{"name": "a\\ud83d", "arguments": {}}</tool_call>', r"the tool call 'a\ud83d' holds text that is not Unicode"),
    ],
)
def test_malformed_call_is_found_with_a_complaint(text: str, complaint: str) -> None:
    (found,) = find_calls(text, TOOLS)
    assert isinstance(found, MalformedCall)
    assert complaint in found.complaint
    assert len(found.complaint) < 250


def test_text_parameter_is_the_only_one_needed() -> None:
    assert [text_parameter(schema) for schema in (TEXT, TWO, PAIR, {}, {"properties": {"only": {"type": "string"}}})] == [
        "expression",
        "query",
        None,
        None,
        "only",
    ]
    assert text_parameter({"properties": {"n": {"type": "integer"}}, "required": ["n"]}) is None


@given(st.text(alphabet="<>/tolca_={}\"':[] \nx1", max_size=200))
def test_any_text_is_read(text: str) -> None:
    for found in find_calls(f"<calculator>{text}<tool_call>{text}</tool_call>", TOOLS):
        assert isinstance(found, ToolCall | MalformedCall)
