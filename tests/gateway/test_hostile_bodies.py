"""Bodies that would be dear to read, through a real server: each is refused, in few words, and no turn of the loop is long."""

import gc
from collections.abc import Iterable
from itertools import count
from types import FrameType
from urllib.parse import urlencode

import httpx
import pytest

from bench.harness.load.hostile import ROUTES, Hostile, hostile_forms, hostile_json
from bench.harness.measures.stalls import watch_stalls
from common.errors import Reject
from common.formats.bounds import JsonScan, OutOfBounds
from common.graders import WrongGrader, read_grader
from common.spec import check_fields
from gateway_svc.bodies import read_scanned
from gateway_svc.http.dashboard.visitor import read_form
from gateway_svc.openai.parsing import parse_request
from gateway_svc.openai.text import CompletionRequest
from gateway_svc.problems import Problem
from tests.gateway.work import calls_of
from tests.support.waiting import at_work, eventually

MIB = 1024 * 1024
MAX_TURN_S = 0.25
"""Maximum processor seconds of a turn on a machine whose caches others use; a free one takes less than 50 ms."""
MAX_ANSWER = 32 * 1024
DEAR = ("as many keys as are permitted", "long keys", "a text", "digits", "keys")
"""Kinds of values that took the most time, or were quoted in answers."""
SENDERS = count()
FORM = "application/x-www-form-urlencoded"
READERS = ("feed", "read_scanned", "handle_strictly", "form_of", "check_token")
"""Functions whose frames hold a body, or values of it."""
KINDS = ("equal keys", "escaped characters", "one number", "nested arrays")


def _worst(bodies: Iterable[Hostile], fields: int = 2) -> list[Hostile]:
    """Of the first fields, and of what is no object."""
    found = dict[str, list[Hostile]]()
    for one in bodies:
        _, _, kind = one.name.rpartition(": ")
        if kind in (DEAR if ": " in one.name else KINDS):
            found.setdefault(kind, []).append(one)
    return [one for of_kind in found.values() for one in of_kind[:fields]]


@pytest.mark.parametrize("route", ROUTES, ids="{0[0]} {0[1]}".format)
async def test_hostile_bodies_hold_no_loop(door: httpx.AsyncClient, route: tuple[str, str]) -> None:
    turns_s, answers = list[float](), dict[str, httpx.Response]()
    bodies = _worst(hostile_json(ROUTES[route]))
    async with at_work(watch_stalls(lambda processor_s, _: turns_s.append(processor_s))):
        for one in bodies:
            answers[one.name] = await _sent(door, *route, one)

    assert {name: answer.status_code for name, answer in answers.items() if answer.status_code not in (400, 404, 413, 429)} == {}
    assert {name: len(answer.content) for name, answer in answers.items() if len(answer.content) > MAX_ANSWER} == {}
    assert max(turns_s) < MAX_TURN_S


async def test_hostile_forms_hold_no_loop(door: httpx.AsyncClient) -> None:
    turns_s, statuses = list[float](), list[int]()
    forms = list(hostile_forms())
    async with at_work(watch_stalls(lambda processor_s, _: turns_s.append(processor_s))):
        for one in forms:
            path = "/v1/files" if "multipart" in one.media_type else "/ui/new/toml"
            statuses.append((await _sent(door, "POST", path, one)).status_code)

    assert set(statuses) <= {400, 403, 413, 429}
    assert max(turns_s) < MAX_TURN_S


async def test_form_with_a_key_is_short(door: httpx.AsyncClient) -> None:
    refused = await door.post("/ui/login", content=b"key=" + b"x" * (17 * 1024), headers={"Content-Type": FORM})

    assert refused.status_code == 413


JSON_BODIES = (b'{"a":' + b"[[1]," * 12_000, b'{"a":1e+999}', b'{"a":1,"a":2}', b'{"model":5}', b'{"model":"a","messages":[{"role":1}]}')


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        *(("/v1/chat/completions", "application/json", body) for body in JSON_BODIES),
        *(("/ui/new", FORM, body) for body in (b"a=%", b"a=1")),
    ],
)
async def test_refused_body_is_freed_at_once(door: httpx.AsyncClient, path: str, kind: str, body: bytes) -> None:
    gc.collect()
    gc.disable()
    try:
        answer = await door.post(path, content=body, headers={"Content-Type": kind})
        await eventually(lambda: not [one for one in gc.get_objects() if isinstance(one, FrameType) and one.f_code.co_name in READERS], 60)
    finally:
        gc.enable()

    assert answer.status_code in (400, 403)


async def _sent(door: httpx.AsyncClient, method: str, path: str, one: Hostile) -> httpx.Response:
    """Each body has a sender of its own, who has not paid for others."""
    tenant = {"tenant": f"hostile{next(SENDERS)}"}
    return await door.request(method, path, content=one.body, params=tenant, headers={"Content-Type": one.media_type})


@pytest.mark.parametrize("escape", [b"%41", b"a.b%0A", b"%C3%A4", b"+"])
def test_a_form_of_escapes_takes_no_call_for_each(escape: bytes) -> None:
    body = b"text=" + escape * (MIB // len(escape))

    assert calls_of(lambda: read_form(body)) < 100


@pytest.mark.parametrize("body", [b"text=" + b"%" * MIB, b"a=%4", b"a=%g0", b"a=%%34", b"a=1&" * 301, b"a=%ff"])
def test_wrong_escapes_and_many_fields_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_form(body)


def test_forms_are_read_as_they_were_filled_in() -> None:
    filled = {"a=b": "1&2 +%41", "": "", "t": "\r\n \t_=?", "ä": "😀", "lines": "a \n b\t\n=\n"}

    assert read_form(urlencode(filled).encode()) == filled
    assert read_form(b"a=1&&b&a=c=d") == {"a": "c=d", "b": ""}


def test_token_ids_take_no_call_for_each() -> None:
    body = b'{"prompt":[' + b",".join([b"17"] * 131_072) + b"]}"
    JsonScan(10_000, 131_072).feed(body)

    assert calls_of(lambda: read_scanned(body, may_be_unstorable=False)) < 100


@pytest.mark.parametrize("value", [b'"a"', b'"a":1', b"{}", b"[]", b"1.5", b"1e5", b"true"])
def test_only_whole_numbers_may_be_more_than_other_values(value: bytes) -> None:
    begin, end = (b"{", b"}") if b":" in value else (b"[", b"]")
    few, many = (begin + b",".join([value] * count) + end for count in (900, 1100))
    JsonScan(1000, 5000).feed(few)

    with pytest.raises(OutOfBounds, match="1000 values"):
        JsonScan(1000, 5000).feed(many)


def test_reasons_quote_no_long_names_or_texts() -> None:
    name = "k" * (MIB // 4)
    with pytest.raises(WrongGrader) as grader:
        read_grader({"type": name})
    with pytest.raises(Reject) as task:
        check_fields({"tenant": "a", name: 1, **{f"{name[:25_000]}{number}": 1 for number in range(30)}})
    with pytest.raises(Problem) as completion:
        parse_request(CompletionRequest, {"model": "a", "prompt": "a", name: 1})

    for said in (grader.value, task.value, completion.value):
        assert "kkk" in str(said) + getattr(said, "detail", "")
        assert len(str(said)) < 8_000


def test_graders_are_counted_before_each_is_read() -> None:
    graders: dict[str, int] = {f"k{number}": 1 for number in range(9_000)}

    with pytest.raises(WrongGrader, match="entries or fewer, not 9000"):
        read_grader({"type": "multi", "name": "a", "graders": {**graders}, "calculate_output": "a"})


async def test_a_tenant_that_is_no_name_is_refused_with_all_else(door: httpx.AsyncClient) -> None:
    for tenant in ({"a": 1}, "A B", "a" * 64, 7):
        answer = await door.put("/v1/tasks/mine", json={"tenant": tenant, "steps": "x"})
        assert answer.status_code == 400
        assert {"tenant", "steps", "name"} <= {error["field"] for error in answer.json()["errors"]}
