"""Bodies that are cheap to send and would be dear to read."""

import time

import pytest

from gateway_svc.problems import Problem
from gateway_svc.strict_json import depth_of, read_json
from gateway_svc.task_bodies import TOML, read_task

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'"' + b'\\"' * 20_000, "Unterminated"),
        (b'"' + b"\\" * 40_001, "Unterminated"),
        (b"{" + b",".join(b'"%d":1' % key for key in [*range(20_000), 19_999]) + b"}", "'19999' is given twice"),
        (b"[" + b"[]," * 500_000 + b"[]]", "too many"),
    ],
)
def test_hostile_json_is_refused_in_time(body: bytes, reason: str) -> None:
    began = time.process_time()

    with pytest.raises(Problem, match=reason):
        read_json(body)

    assert time.process_time() - began < 2


def test_long_text_is_read_in_time() -> None:
    began = time.process_time()

    assert len(str(read_json(b'"' + b"a" * 8 * MIB + b'"'))) == 8 * MIB
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("text", "depth"), [('"[[["', 0), (r'"\"[["', 0), (r'["\\",[]]', 2), ('[{"a":["]}"]}]', 3), ('"[[', 0), ('"\\', 0), ("[[", 2)]
)
def test_depth(text: str, depth: int) -> None:
    assert depth_of(text) == depth


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_whole_numbers_that_no_message_can_have(number: int) -> None:
    for read in (lambda: read_json(f'{{"a": [{number}]}}'.encode()), lambda: read_task(f"a = [{number}]".encode(), TOML)):
        with pytest.raises(Problem, match="too large"):
            read()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a." * 8_000 + b"a = 1", "nested"),
        (b"[" + b'"a" . ' * 8_000 + b"a]", "nested"),
        (b"a." * 32 + b"a = 1", "nested"),
        (b"a = " + b"9" * 5000, "digits"),
        (b"a = nan", "too large"),
        (b"a = -inf", "too large"),
        (b"a = 1e999", "too large"),
    ],
)
def test_hostile_toml_is_refused_in_time(body: bytes, reason: str) -> None:
    began = time.process_time()

    with pytest.raises(Problem, match=reason):
        read_task(body, TOML)

    assert time.process_time() - began < 0.3


@pytest.mark.parametrize("body", [b"a.b.c = 1.5", b"a = '" + b"x" * MIB + b"'", b'a = "' + b"x-" * 500_000 + b'"'])
def test_ordinary_toml_is_read_in_time(body: bytes) -> None:
    began = time.process_time()

    assert read_task(body, TOML)
    assert time.process_time() - began < 1
