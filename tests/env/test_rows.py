"""Rows of files: every reader sees the same lines and the same JSON, and answers that are numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.formats.jsonl import RowChecker
from common.graders import Sample
from env_svc.adapters.openenv import action_in
from env_svc.builtin.math_problems import MathProblems
from env_svc.builtin.multi_hop import MultiHop
from env_svc.contract import Finish, Reply, WrongOptions
from env_svc.datasets import rows_of_file
from env_svc.files.environment import RowFile, file_rows
from env_svc.tools.search import index_of

SEPARATORS = [*"\v\f\x1c\x1d\x1e\x85\u2028\u2029\r\n", "\r\n", "\ufeff"]
"""All that Python's `splitlines` takes for the end of a line, and a mark of byte order."""


def row(text: str) -> dict[str, Any]:
    return {"question": text, "title": text, "text": text, "answer": "7", "path": [], "messages": [{"role": "user", "content": text}]}


ROWS = [row(f"A note{separator}says: add 3 and 4.") for separator in SEPARATORS]


@pytest.mark.parametrize("escaped", [False, True])
@pytest.mark.parametrize("end", ["", "\r"])
def test_every_reader_of_rows_sees_every_separator(rows_in: Callable[..., str], tmp_path: Path, escaped: bool, end: str) -> None:
    name = rows_in(*(json.dumps(one, ensure_ascii=escaped) + end for one in ROWS), "", "\t ")
    assert rows_of_file(name) == ROWS
    assert len(MathProblems(file=name)._rows) == len(MultiHop(questions=name)._rows) == len(ROWS)
    assert index_of(name).texts == [one["text"] for one in ROWS]
    checker = RowChecker()
    checker.feed((tmp_path / name).read_bytes())
    uploaded = RowFile(tmp_path / name)
    assert checker.finish() == len(uploaded) == len(ROWS)
    assert [uploaded.row(number) for number in range(len(ROWS))] == ROWS


def test_file_may_begin_with_a_mark_of_byte_order(rows_in: Callable[..., str]) -> None:
    assert rows_of_file(rows_in(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode(), json.dumps(ROWS[1]))) == ROWS[:2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": -Infinity}', "-Infinity is no number of JSON"),
        ('{"want": 1e999}', "1e999 is too large"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ('{"a": "\\ud83d"}', "it is no UTF-8 text"),
        (b'{"a": "\xff"}', "it is no UTF-8 text"),
        ('{"a": ' + "[" * 100_000, "it is nested too deeply"),
        ('{"a": 1' + "0" * 5000 + "}", "a whole number has more than 4300 digits"),
        ("[1]", "it is no JSON object"),
        ("{", "it is no JSON: "),
    ],
)
def test_line_that_is_no_strict_json_is_named(rows_in: Callable[..., str], line: str | bytes, reason: str) -> None:
    with pytest.raises(WrongOptions) as caught:
        rows_of_file(rows_in(json.dumps(ROWS[0]), line))
    assert " line 2: " in str(caught.value) and reason in str(caught.value)


@pytest.mark.parametrize(("answer", "right"), [(42, "42"), (27.0, "27"), (0.5, "0.5"), (-3, "-3"), (10**20, "100000000000000000000")])
async def test_answers_that_are_numbers_are_taken(rows_in: Callable[..., str], answer: float, right: str) -> None:
    name = rows_in({"question": "What is 6 * 7?", "answer": answer, "path": []})
    for environment in (MathProblems(file=name), MultiHop(questions=name)):
        opening = await environment.open(0, 0)
        turn = await environment.step(opening.state, Reply(f"Answer: {right}"))  # pyright: ignore
        assert isinstance(turn, Finish) and turn.reward == 1.0


@pytest.mark.parametrize("answer", [None, True, [42], {"is": 42}])
def test_answers_of_other_types_are_named(rows_in: Callable[..., str], answer: object) -> None:
    name = rows_in({"question": "What is 6 * 7?", "answer": answer})
    with pytest.raises(WrongOptions, match=r"the answer 'answer' of row 0 of rows-\d+.jsonl is .*, expected a text or a number"):
        MathProblems(file=name)


NO_JSON = ['{"score": NaN}', '{"a": [Infinity]}', '{"a": 1e999}', '{"a": 1, "a": 1}', "[" * 100_000]


@pytest.mark.parametrize("reply", NO_JSON)
async def test_reply_with_what_json_has_not_is_no_json(rows_in: Callable[..., str], tmp_path: Path, reply: str) -> None:
    assert Sample(reply).as_dict() == {"output_text": reply, "output_json": None}
    rows = RowFile(tmp_path / rows_in(row("Which score?")))
    check: dict[str, Any] = {
        "type": "string_check",
        "name": "c",
        "input": "{{sample.output_json.score}}",
        "operation": "ne",
        "reference": "1",
    }
    turn = await file_rows("file:x", rows, {"grader": check}).step(0, Reply(reply))
    assert isinstance(turn, Finish) and (turn.reward, turn.components["grader_errors"]) == (0.0, 0.0)
    with pytest.raises(ValueError, match="reply with one JSON object"):
        action_in(reply)


@pytest.mark.parametrize("reply", ['{"a": 1}', '```json\n{"a": 1}\n```', 'So:\n```JSON\n{"a": 1}', '``` json5\n{"a": 1}```\nDone.'])
def test_action_is_found_in_any_dress(reply: str) -> None:
    assert action_in(reply) == {"a": 1}
