"""Rows of files: one pass over parts of any size, and one clear error with the line's number."""

import json

import pytest

from common.formats.jsonl import MAX_ROW_BYTES, RowChecker, WrongRow, offsets, parse_row

ROW = b'{"messages": [{"role": "user", "content": "caf\xc3\xa9 \\ud83d\\ude00"}], "n": 1}'


def check(data: bytes, size: int = 7) -> int:
    checker = RowChecker()
    for begin in range(0, len(data), size):
        checker.feed(data[begin : begin + size])
    return checker.finish()


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_rows_are_counted_whatever_the_parts(size: int) -> None:
    assert check(ROW + b"\r\n\n  \n" + ROW, size) == 2
    assert check(ROW + b"\n", size) == 1
    assert check(b"\xef\xbb\xbf" + ROW + b"\r\n", size) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"7", "it is no JSON object"),
        (b"{", "it is no JSON: "),
        (b'{"a": NaN}', "it is no JSON: NaN is no number of JSON"),
        (b'{"a": [-Infinity]}', "it is no JSON: -Infinity"),
        (b'{"a": 1e999}', "it is no JSON: 1e999 is too large"),
        (b'{"a": 1, "a": 2}', "it is no JSON: the key 'a' is given twice"),
        (b'{"a": "\\ud800"}', "it is no UTF-8 text"),
        (b'{"a": "\xff"}', "it is no UTF-8 text"),
        (b'{"a": ' + b"9" * 5000 + b"}", "it is no JSON: a whole number has more than 4300 digits"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"{}", "messages: a list"),
        (b'{"messages": []}', "messages: a list"),
        (b'{"messages": [7]}', "messages[0].role"),
        (b'{"messages": [{"role": "critic", "content": ""}]}', "messages[0].role"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "messages[0].content"),
        (b'{"messages": [{"role": "user", "content": "", "tool_calls": []}]}', "messages[0].tool_calls"),
        (b'{"x": "' + b"y" * MAX_ROW_BYTES + b'"}', f"it has more than {MAX_ROW_BYTES} bytes"),
    ],
)
def test_a_wrong_line_is_named(line: bytes, reason: str) -> None:
    with pytest.raises(WrongRow) as caught:
        check(ROW + b"\n\n" + line + b"\n" + ROW, 1000)
    assert str(caught.value).startswith(f"line 3: {reason}")


def test_a_file_without_rows_is_refused() -> None:
    with pytest.raises(WrongRow, match="no row"):
        check(b"\n \n")


def test_a_line_without_end_is_refused_before_it_is_kept() -> None:
    checker = RowChecker()
    with pytest.raises(WrongRow, match="line 1: it has more than"):
        for _ in range(100):
            checker.feed(b"x" * 10_000)


def test_positions_find_the_rows() -> None:
    lines = [ROW + b"\n", b"\n", b"  \n", ROW]
    data = b"".join(lines)
    places = list(offsets(iter(lines)))
    assert len(places) == 2
    assert [parse_row(data[place:].partition(b"\n")[0]) for place in places] == [json.loads(ROW)] * 2
