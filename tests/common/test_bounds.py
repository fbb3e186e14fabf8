"""Values of users' bodies are counted on their bytes, as a reader would build them."""

import gc
import json
import random
import time
import tracemalloc
from typing import Any

import msgpack
import pytest

from common.errors import Reject
from common.formats.bounds import MAX_DEPTH, JsonScan, OutOfBounds, check_json, check_packed
from common.messages import SubmitTask
from common.spec import check_fields

MIB = 1024 * 1024
TEXTS = ['say "a, [b]"', "\\", '\\"', "\\\\,", "ü\u2028,{", "", "\n", "[[[{{{", "1" * 500]


def _values(value: Any) -> int:
    """Entries of all arrays and objects, and empty ones."""
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else max(1, len(inner)) + sum(map(_values, inner))


def _made(seed: random.Random, depth: int) -> Any:
    kind = seed.choice(["text", "number", "list", "object"]) if depth else "text"
    if kind == "list":
        return [_made(seed, depth - 1) for _ in range(seed.randrange(6))]
    if kind == "object":
        return {f"{key}{seed.choice(TEXTS)}": _made(seed, depth - 1) for key in range(seed.randrange(6))}
    return seed.choice(TEXTS) if kind == "text" else seed.choice([1, -2.5e-7, 2**62, True, None])


@pytest.mark.parametrize("number", range(60))
def test_json_has_exactly_the_values_that_are_counted_wherever_it_is_cut(number: int) -> None:
    seed = random.Random(number)
    value = [_made(seed, 7)]
    body = json.dumps(value, ensure_ascii=seed.random() < 0.5, indent=seed.choice([None, 1])).encode()
    cuts = sorted(seed.randrange(len(body) + 1) for _ in range(seed.randrange(9)))
    for permitted in (True, False):
        scan = JsonScan(_values(value) if permitted else _values(value) - 1)
        parts = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        if permitted:
            for part in parts:
                scan.feed(part)
        else:
            with pytest.raises(OutOfBounds):
                for part in parts:
                    scan.feed(part)


@pytest.mark.parametrize(
    "body", [b'["\\u0000"]', b'["\\\\\\ud800"]', b'["", 18446744073709551616]', b"[-9223372036854775809]", b"[1e+30]", b"[NaN]"]
)
def test_what_may_be_unstorable_is_noticed_wherever_it_is_cut(body: bytes) -> None:
    for cut in range(len(body) + 1):
        scan = JsonScan()
        scan.feed(body[:cut])
        scan.feed(body[cut:])
        assert scan.may_be_unstorable, cut


def test_ordinary_bodies_need_no_look_at_each_value() -> None:
    assert not check_json(
        json.dumps({"a": ["NaN + 12345678901234567890", 2**59, -1.5, True, None, 'say "ä"'], "b\n": {}}, ensure_ascii=False).encode()
    )


@pytest.mark.parametrize("number", range(60))
def test_messagepack_has_exactly_the_values_that_are_counted(number: int) -> None:
    value = {"a": _made(random.Random(number), 7), "b": b"\xdd\xff\xff\xff\xff" * 300, "c": [2.5, -7, 2**40, "x" * 70_000]}
    body = msgpack.packb(value)
    assert body is not None
    entries = _entries(value)
    check_packed(body, entries)
    with pytest.raises(OutOfBounds, match="values"):
        check_packed(body, entries - 1)


def _entries(value: Any) -> int:
    inner = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(_entries, inner))


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_depth_is_bounded_in_both_forms(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    for check, body in ((check_json, json.dumps(value).encode()), (check_packed, msgpack.packb(value))):
        if depth == MAX_DEPTH:
            check(body)
        else:
            with pytest.raises(OutOfBounds, match="nested"):
                check(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xdd\x00\x10\x00\x00" * 400 + b"\x01" * MIB, "values"),  # each head claims a million entries, which a reader allocates
        (b"\x82\xa4spec\xdf\xff\xff\xff\xff", "values"),
        (b"\x91" * MIB, "nested"),
        (b"\xdd\x00\x0f\xff\xff" + b"\x90" * MIB, "values"),
        (b"{" + b'"a":[' * MIB, "nested"),
        (b"{" + b'"a":1,' * (MIB // 6), "values"),
    ],
)
def test_a_users_message_is_refused_before_anything_is_built(body: bytes, reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Reject, match=reason):
            SubmitTask.decode(body, by_user=True)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB  # a part in pieces
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "wrong",
    [
        {"environment": {"name": "x", "tools": [1] * 9_900}},
        {"environment": {"name": "x", "weights": {f"k{number}": "x" for number in range(9_900)}}},
        {f"k{number}": 1 for number in range(9_900)},
        {"environment": {"name": "x", "tools": [{"name": "x", **{f"k{key}": 1 for key in range(150)}}] * 64}},
    ],
    ids=["tools", "weights", "fields", "fields of tools"],
)
def test_a_task_with_thousands_of_wrong_values_is_answered_with_twenty_and_their_number(wrong: dict[str, Any]) -> None:
    gc.freeze()  # a collection of all that the tests have imported takes longer
    began = time.thread_time()
    with pytest.raises(Reject) as caught:
        check_fields({"name": "x", "tenant": "a", "pool": "tiny", "steps": 3, "environment": {"name": "x"}} | wrong)
    took_s = time.thread_time() - began
    gc.unfreeze()

    assert len(caught.value.reasons) <= 21
    assert took_s < 0.5  # several times as long before
    assert caught.value.reasons[-1].startswith("and ") or any(
        said in caught.value.reasons[0] for said in ("or fewer, not 9900", "has 9905 fields")
    )


def test_a_task_has_a_maximum_of_values_wherever_it_is_submitted() -> None:
    with pytest.raises(Reject, match="task: more than 10000 values"):
        check_fields({"environment": {"name": "x", "options": {"rows": [1] * 10_001}}})


def test_bytes_behind_the_one_value_of_messagepack_are_not_looked_at() -> None:
    began_s = time.thread_time()
    for body in (bytes(MIB), msgpack.packb({"tenant": "acme"}) + bytes(MIB), b"\x90" * MIB):
        check_packed(body)
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ({"evaluation": {"every": 1, "protocol": [[]] * 4_900}}, "evaluation.protocol: must have 8 entries or fewer, not 4900"),
        ({"sampling": {"stop": ["x" * 70] * 9_000}}, "sampling.stop: must have 4 entries or fewer, not 9000"),
        ({"lora": {"targets": ["x"] * 9_000}}, "lora.targets: must have 7 entries or fewer, not 9000"),
    ],
)
def test_wrong_entries_are_counted_before_each_becomes_an_error(section: dict[str, Any], reason: str) -> None:
    with pytest.raises(Reject, match=reason.replace(".", r"\.")):
        check_fields({"name": "a", "tenant": "t", "pool": "tiny", "steps": 3, "environment": {"name": "m"}, **section})
