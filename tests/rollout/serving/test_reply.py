"""Text that is streamed is the text that all tokens spell at once, however they come."""

import json
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.tool_calls import Schema, Thoughts, ToolCall, find_calls, without_calls
from rollout_svc.engine.stream import TokenLogprobs, logprobs_of
from rollout_svc.serving.reply import AnswerText, Parts, Piece, Reply, schemas_of
from rollout_svc.text.chat import Chat
from tests.support.rollout.requests import POOL

CHAT = Chat.load(POOL.model)
WORDS = ("a", "ab", " ", "\n", "é", "né", "日本", "🙂", "👩‍👩‍👧", "\u0301", "3 + 4", "7", "<", "<tool", "stop", "\ufffd")
SEARCH: Schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
PAIR: Schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = {"search": SEARCH, "pair": PAIR}
CALLS = (
    '<tool_call>{"name": "pair", "arguments": {"a": "é🙂", "b": 1}}</tool_call>',
    "<tool_call><function=pair><parameter=a>\nx\n</parameter></function></tool_call>",
    "<search>dams</search>",
    "<tool_call>not JSON</tool_call>",
    '<tool_call>\n{"name": "pair", "arguments": {"a": "</tool_call> <think> \\"", "b": 1}}\n</tool_call>',
    "<tool_call>\n<function=pair>\n<parameter=a>\n</tool_call></parameter> x</function>\n</parameter>\n</function>\n</tool_call>",
    "<tool_call><function=pair><parameter=a>",
    "<tool_call><function=pair></tool_call>",
    '<tool_call>{"a": "',
    '"}',
    "<tool_call>{",
    "<search>",
    "</search>",
    "</tool_call>",
)

texts = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
bytes_of_characters = texts.map(lambda text: [token for char in text for token in encoded(char)])
any_ids = st.lists(st.integers(3, CHAT.vocabulary - 1), max_size=30)
ids_strategy = st.one_of(texts.map(lambda text: encoded(text)), bytes_of_characters, any_ids)
stops = st.lists(st.one_of(st.sampled_from([word for word in WORDS if word]), texts.filter(bool)), max_size=4)
cuts = st.lists(st.integers(1, 5), max_size=40)


def encoded(text: str) -> list[int]:
    return list(CHAT._tokenizer.encode(text, add_special_tokens=False))


def grouped(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """`ids` in flushes of these sizes, the rest one by one."""
    groups: list[list[int]] = []
    place = 0
    for size in [*sizes, *[1] * len(ids)]:
        if place < len(ids):
            groups.append(list(ids[place : place + size]))
        place += size
    return groups


def reply(stop: Sequence[str] = (), tools: dict[str, Schema] | None = None, thoughts: tuple[str, str] | None = None) -> Reply:
    return Reply("r", CHAT, Parts(tools or {}, thoughts), stop)


def streamed(one: Reply, ids: Sequence[int], sizes: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    groups = grouped(ids, sizes)
    for number, group in enumerate(groups):
        pieces.append(one.feed(group, [], "length" if number == len(groups) - 1 else None))
        if pieces[-1].finish:
            break
    return pieces


def cut_at_first(text: str, stop: Sequence[str]) -> str:
    ends = [(text.find(string) + len(string), text.find(string)) for string in stop if string in text]
    return text[: min(ends)[1]] if ends else text


@settings(max_examples=2000)
@given(ids_strategy, stops, cuts)
@example(encoded("🙂"), [], [])
@example([token for char in "né🙂" for token in encoded(char)], ["🙂"], [2])
def test_streamed_text_is_the_text_at_once_cut_at_the_first_stop_string(ids: list[int], stop: list[str], sizes: list[int]) -> None:
    whole = CHAT.decode(ids)
    pieces = streamed(reply(stop), ids, sizes)
    assert "".join(piece.text for piece in pieces) == cut_at_first(whole, stop)
    assert not ids or pieces[-1].finish == ("stop" if any(string in whole for string in stop) else "length")
    given = [token for piece in pieces for token in piece.ids]
    assert given == ids[: len(given)]


@settings(max_examples=500)
@given(ids_strategy, stops, cuts, st.integers(0, 30))
def test_second_attempt_goes_on_at_the_same_character(ids: list[int], stop: list[str], sizes: list[int], after: int) -> None:
    pieces = streamed(reply(stop), ids, [])
    before, rest = pieces[:after], pieces[after:]
    resumed = reply(stop)
    resumed.resume([token for piece in before for token in piece.ids])
    continued = streamed(resumed, ids[len(before) :], sizes) if rest else []
    assert "".join(piece.text for piece in continued) == "".join(piece.text for piece in rest)


@settings(max_examples=500)
@given(st.lists(st.one_of(texts, st.sampled_from(CALLS)), max_size=6).map("".join), cuts)
def test_calls_split_anywhere_are_those_of_the_whole_text(text: str, sizes: list[int]) -> None:
    ids = encoded(text)
    pieces = streamed(reply(tools=TOOLS), ids, sizes)
    found = find_calls(text, TOOLS)
    calls = [(call.name, json.loads(call.arguments)) for piece in pieces for call in piece.calls]
    assert calls == [(call.name, call.arguments) for call in found if isinstance(call, ToolCall)]
    said = "".join(piece.text for piece in pieces)
    if not calls:
        assert said == text
    elif all(isinstance(call, ToolCall) for call in found):
        assert "".join(said.split()) == "".join(without_calls(text, TOOLS).split())
        assert said == said.rstrip()
    identifiers = [call.id for piece in pieces for call in piece.calls]
    assert len(set(identifiers)) == len(identifiers)


@settings(max_examples=500)
@given(texts, st.lists(st.sampled_from(("<think>", "</think>", "<search>x</search>", "b", " ", "<thi")), max_size=8).map("".join), cuts)
def test_thoughts_are_apart_however_they_come(before: str, text: str, sizes: list[int]) -> None:
    ids = encoded(before + text)
    whole = streamed(reply(tools=TOOLS, thoughts=("<think>", "</think>")), ids, [len(ids)])
    parts = streamed(reply(tools=TOOLS, thoughts=("<think>", "</think>")), ids, sizes)
    for of in (lambda piece: piece.text, lambda piece: piece.reasoning):
        assert "".join(map(of, parts)) == "".join(map(of, whole))
    thought = "".join(piece.reasoning for piece in parts)
    assert "<think>" not in thought.replace("<think>", "", text.count("<think>") - 1) or text.count("<think>") > 1
    assert not any(call.name == "search" for piece in parts for call in piece.calls) or "<search>x</search>" in text


def test_thoughts_hold_no_calls_and_are_text_where_the_pool_names_no_marks() -> None:
    text = "<think>maybe <search>x</search></think>yes <search>y</search>"
    [piece] = streamed(reply(tools=TOOLS, thoughts=("<think>", "</think>")), encoded(text), [1000])
    assert (piece.reasoning, piece.text, [call.arguments for call in piece.calls]) == (
        "maybe <search>x</search>",
        "yes",
        ['{"query": "y"}'],
    )
    [piece] = streamed(reply(tools=TOOLS), encoded(text), [1000])
    assert (piece.reasoning, piece.text, len(piece.calls)) == ("", "<think>maybe <search>x</search></think>yes", 1)
    assert Thoughts.after("... <think>\n").begins_inside
    assert not Thoughts.after("<think> done").begins_inside
    assert Thoughts.after("... [THINK]", ("[THINK]", "[/THINK]")) == Thoughts("[THINK]", "[/THINK]", begins_inside=True)


def test_text_waits_only_while_it_could_begin_a_stop_string_or_a_call() -> None:
    one = reply(["###"], TOOLS)
    assert one.feed(encoded("ab #"), [], None).text == "ab"
    assert one.feed(encoded("c"), [], None).text == " #c"
    assert one.feed(encoded("<sea"), [], None).text == ""
    assert one.feed(encoded("l"), [], None).text == "<seal"


def test_stop_token_is_counted_and_not_spelled() -> None:
    piece = reply().feed([*encoded("ab"), CHAT.stop_ids[0], *encoded("c")], [], None)
    assert (piece.text, piece.finish, len(piece.ids)) == ("ab", "stop", len(encoded("ab")) + 1)


def test_streamed_call_ends_with_its_own_reason() -> None:
    """An unstreamed answer says so too."""
    piece = reply(tools=TOOLS).feed([*encoded("<search>x</search>"), CHAT.stop_ids[0]], [], "stop")
    assert (piece.finish, piece.text) == ("tool_calls", "")


def test_single_call_ends_the_reply() -> None:
    one = Reply("r", CHAT, Parts(TOOLS, None), [], parallel_calls=False)
    piece = one.feed(encoded("a <search>x</search> b <search>y</search>"), [], None)
    assert (piece.finish, piece.text, len(piece.calls)) == ("tool_calls", "a", 1)


def test_bytes_of_tokens_join_to_the_text() -> None:
    ids = [token for char in "né🙂日" for token in encoded(char)]
    piece = reply().feed(ids, [TokenLogprobs(-float("inf"), [(5, -0.5)]) for _ in ids], None)
    assert b"".join(bytes(token.bytes) for token in piece.tokens).decode() == "né🙂日"
    assert {token.logprob for token in piece.tokens} == {-9999.0}
    assert json.loads(piece.tokens[0].model_dump_json())


def test_likeliest_tokens_include_the_sampled_one_however_the_engine_writes_it() -> None:
    """One place with it twice, and one with it once, as in joined outputs; the third was not among the likeliest."""
    flat = SimpleNamespace(
        start_indices=[0, 3, 5],
        end_indices=[3, 5, 8],
        token_ids=[4, 4, 5, 4, 5, 9, 4, 5],
        logprobs=[-1.0, -1.0, -2.0, -1.0, -2.0, -5.0, -1.0, -2.0],
    )
    top = [(4, -1.0), (5, -2.0)]
    assert logprobs_of(flat, 2) == [TokenLogprobs(-1.0, top), TokenLogprobs(-1.0, top), TokenLogprobs(-5.0, top)]
    assert [one.top for one in logprobs_of(flat, 0)] == [[], [], []]


@pytest.mark.parametrize("tool", [{}, {"function": 3}, {"function": {"name": 1}}, {"function": {"name": "a", "parameters": []}}])
def test_tool_of_another_shape_is_refused(tool: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="tool"):
        schemas_of([{"function": {"name": "a", "parameters": [1]}}] if tool == {"function": {"name": "a", "parameters": []}} else [tool])


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": True}},
        {"properties": [], "required": ["a"]},
        {"properties": {"a": "s"}, "required": ["a"]},
        {"properties": {}, "required": [["a"]]},
        {"properties": {"a": True}, "required": {"a": 1}},
    ],
)
def test_tool_whose_parameters_have_no_schemas_is_called(schema: Schema) -> None:
    parts = Parts(schemas_of([{"function": {"name": "a", "parameters": schema}}]), None)
    written = "<tool_call><function=a><parameter=a>x</parameter></function></tool_call>"
    assert [*parts.feed(written), *parts.end()] == [ToolCall("a", {"a": "x"})]


def test_parts_without_tools_hold_nothing_back() -> None:
    assert list(Parts({}, None).feed("<tool_call>")) == [AnswerText("<tool_call>")]
