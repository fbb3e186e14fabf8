"""Bodies that are cheap to send and would be dear to read."""

import resource
import time
from contextlib import suppress

import pytest

from bench.harness.load.hostile import hostile_toml
from common.formats.toml_reader import read_toml
from gateway_svc.bodies import TOML, read_json, read_task
from gateway_svc.limits.preparation_slots import PreparationSlot
from gateway_svc.problems import Problem

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'"' + b'\\"' * 20_000, "Unterminated"),
        (b'"' + b"\\" * 40_001, "Unterminated"),
        (b"{" + b",".join(b'"%d":1' % key for key in [*range(9_000), 8_999]) + b"}", "'8999' is given twice"),
        (b"[" + b"[]," * 500_000 + b"[]]", "more than 10000 values"),
        (b"[" + b"9" * 5000 + b"]", "digits"),
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


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_whole_numbers_that_no_message_can_have(number: int) -> None:
    for read in (lambda: read_json(f'{{"a": [{number}]}}'.encode()), lambda: read_toml(f"a = [{number}]".encode())):
        with pytest.raises((Problem, ValueError), match="too large"):
            read()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"a." * 8_000 + b"a = 1", "nested"),
        (b"[" + b'"a" . ' * 8_000 + b"a]", "nested"),
        (b"a." * 32 + b"a = 1", "nested"),
        (b"a = " + b"9" * 5000, "not TOML: a whole number has more than 4300 digits"),
        (b"a = nan", "too large"),
        (b"a = -inf", "too large"),
        (b"a = 1e999", "too large"),
    ],
)
async def test_hostile_toml_is_refused_in_time(body: bytes, reason: str) -> None:
    began = time.process_time()

    with pytest.raises(Problem, match=reason):
        await read_task(body, TOML, place())

    assert time.process_time() - began < 0.3


@pytest.mark.parametrize("body", [b"a.b.c = 1.5", b"a = '" + b"x" * MIB + b"'", b'a = "' + b"x-" * 500_000 + b'"'])
async def test_ordinary_toml_is_read_in_time(body: bytes) -> None:
    began = time.process_time()

    assert await read_task(body, TOML, place())
    assert time.process_time() - began < 1


DEAR = ("dotted keys", "arrays of tables", "newlines", "an array of arrays", "one text of escapes", "wrong tools", "one hexadecimal number")


@pytest.mark.parametrize("name", DEAR)
async def test_toml_of_a_mebibyte_is_read_by_another_process_for_which_its_sender_pays(name: str) -> None:
    [one] = [one for one in hostile_toml() if one.name == name]
    charged = list[float]()
    began, peak_kib = time.thread_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with suppress(Problem):
        await read_task(one.body, TOML, place(charged))

    assert time.thread_time() - began < 0.1  # of the loop's thread: before, seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib < 64 * 1024
    assert len(charged) == 1


def place(charged: list[float] | None = None) -> PreparationSlot:
    return PreparationSlot(lambda: None, (charged if charged is not None else []).append, 60)
