"""Bodies that are cheap to send and would be dear to read, for every route that takes one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from common.formats.bounds import MAX_DEPTH, MAX_VALUES

MIB = 1024 * 1024 - 4096
"""Bytes of a body, a little less than most routes take."""
JSON, TOML = "application/json", "application/toml"
FORM, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data; boundary=b"
Body = dict[str, Any]
TASK: Body = {
    "name": "hostile",
    "pool": "tiny",
    "steps": 3,
    "environment": {"name": "sums", "options": {}, "weights": {}, "tools": []},
    "metadata": {},
    "sampling": {"stop": [], "template": {}},
    "lora": {"targets": ["q_proj"]},
    "evaluation": {"protocol": [], "options": {}},
}
CHAT: Body = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "a"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    "logit_bias": {},
    "stop": [],
    "metadata": {},
    "chat_template_kwargs": {},
    "stream_options": {},
}
COMPLETION: Body = {"model": "tiny", "prompt": [1, 2], "logit_bias": {}, "stop": [], "metadata": {}}
RESPONSE: Body = {
    "model": "tiny",
    "input": [{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}],
    "include": [],
    "text": {},
    "metadata": {},
}
JOB: Body = {
    "model": "tiny",
    "training_file": "env:sums",
    "method": {"type": "reinforcement", "reinforcement": {"hyperparameters": {}, "grader": {}}},
    "metadata": {},
    "marlaas": {"steps": 3, "environment": {"options": {}}},
}
GRADER: Body = {"grader": {"type": "multi", "name": "g", "graders": {}, "calculate_output": "a"}}
ROUTES: dict[tuple[str, str], Body] = {
    ("POST", "/v1/tasks"): TASK,
    ("POST", "/v1/tasks?dry_run=true"): TASK,
    ("PUT", "/v1/tasks/hostile-1"): TASK,
    ("POST", "/v1/ask/tasks"): {"states": ["running"], "name": "a", "most": 1},
    ("POST", "/v1/jobs/set-tenant"): {"tenant": "acme", "request": "r", "limits": [{"of": "max_tasks", "value": 1}], "defaults": []},
    ("POST", "/v1/chat/completions"): CHAT,
    ("POST", "/v1/completions"): COMPLETION,
    ("POST", "/v1/responses"): RESPONSE,
    ("POST", "/v1/fine_tuning/jobs"): JOB,
    ("POST", "/v1/fine_tuning/alpha/graders/validate"): GRADER,
    ("PUT", "/v1/aliases/prod"): {"task": "sums-1", "version": 1},
    ("PUT", "/v1/webhooks/pager"): {"url": "https://hooks.example.com/a", "events": ["finished"]},
}
"""Routes that take JSON → a right body, whose every field is tried."""


@dataclass(frozen=True)
class Hostile:
    name: str
    media_type: str
    body: bytes


def hostile_json(right: Body, size: int = MIB) -> Iterator[Hostile]:
    """Bodies of about so many bytes: what no field could have, then each field, wherever it is, with each kind of value."""
    for name, body in _texts(size):
        yield Hostile(name, JSON, body)
    for kind, value in _values(size):
        for path in _paths(right):
            yield Hostile(f"{'.'.join(path)}: {kind}", JSON, _padded(_with(right, path, value), size))


def hostile_toml(size: int = MIB) -> Iterator[Hostile]:
    for name, line in TOML_LINES.items():
        lines = b"".join(line.replace(b"%d", b"%d" % number) for number in range(size // len(line)))
        yield Hostile(name, TOML, lines[:size])
    for name, (begin, middle, end) in TOML_WHOLE.items():
        yield Hostile(name, TOML, begin + middle * ((size - len(begin) - len(end)) // len(middle)) + end)


def hostile_forms(size: int = MIB) -> Iterator[Hostile]:
    """Of the dashboard, and of uploads."""
    for name, part in {"fields": b"a=1&", "escapes": b"%41", "wrong escapes": b"%", "pluses": b"+", "toml": b"a.b%0A"}.items():
        yield Hostile(name, FORM, b"text=" + part * (size // len(part)))
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
    parts = {
        "returns": head + b"\r\n" + b"\r" * size,
        "almost the boundary": head + b"\r\n" + b"\r\n--a" * (size // 5),
        "headers": head + b"a: b\r\n" * (size // 6),
        "a long header": head + b"a" * size,
        "parts": (head + b"\r\n\r\n") * (size // len(head)),
        "nested rows": head + b"\r\n" + b"[" * size + b"\r\n--b--\r\n",
        "wide rows": head + b"\r\n" + b"[" + b"1," * (size // 2) + b"1]\r\n--b--\r\n",
        "many rows": head + b"\r\n" + b"{}\n" * (size // 3) + b"\r\n--b--\r\n",
    }
    yield from (Hostile(name, MULTIPART, body) for name, body in parts.items())


def hostile_bodies(method: str, path: str, size: int = MIB) -> list[Hostile]:
    """All that there are for a route of ROUTES; those that take task files take TOML, too."""
    found = list(hostile_json(ROUTES[method, path], size))
    return found + list(hostile_toml(size)) if path.startswith("/v1/tasks") else found


def spread(bodies: list[Hostile], count: int) -> list[Hostile]:
    """So many, from all over, and from the beginning again where there are fewer."""
    if len(bodies) <= count:
        return list(islice(cycle(bodies), count))
    return [bodies[number * len(bodies) // count] for number in range(count)]


TOML_LINES = {
    "dotted keys": b"a%d.b.c.d=1\n",
    "keys": b"a%d=1\n",
    "tables": b"[a%d]\n",
    "arrays of tables": b"[[a]]\n",
    "nested tables": b"[a%d.b.c.d.e]\n",
    "comments": b"#%d\n",
    "newlines": b"\n",
    "dates": b"a%d=2020-01-01\n",
    "floats": b"a%d=1.5e3\n",
    "inline tables": b"a%d={b={c={d=1}}}\n",
    "digits": b"a%d=" + b"9" * 400 + b"\n",
    "hexadecimal": b"a%d=0x" + b"f" * 400 + b"\n",
    "escapes": b'a%d="\\u0041\\u0041"\n',
    "strings": b'a%d=""\n',
    "long strings": b"a%d='''\n''\n'''\n",
}
TOML_WHOLE = {
    "one dotted key": (b"", b"a.", b"a=1"),
    "one quoted key": (b"", b'"a".', b"a=1"),
    "nested arrays": (b"a=", b"[", b""),
    "nested inline tables": (b"a=", b"{a=", b""),
    "an array": (b"a=[", b"1,", b"]"),
    "an array of arrays": (b"a=[", b"[],", b"]"),
    "an array of texts": (b"a=[", b'"",', b"]"),
    "wrong tools": (b"[environment]\ntools=[", b"1,", b"]"),
    "one number": (b"a=", b"9", b""),
    "one hexadecimal number": (b"a=0x", b"f", b""),
    "one text": (b'a="', b"a", b'"'),
    "one text of escapes": (b'a="', b"\\n", b'"'),
    "one text of lines": (b'a="""', b"a\n", b'"""'),
    "an open text": (b'a="""', b'""\\"', b""),
    "one comment": (b"#", b"#", b""),
    "blanks": (b"a =", b" ", b"1"),
    "one inline table": (b"a={", b"a=1,", b"}"),
    "a long key": (b"", b"a", b"=1"),
}


def _texts(size: int) -> Iterator[tuple[str, bytes]]:
    wholes: dict[str, tuple[bytes, bytes, bytes]] = {
        "nested arrays": (b"", b"[", b""),
        "nested objects": (b"", b'{"a":', b""),
        "an array": (b"[", b"1,", b"1]"),
        "an array of arrays": (b"[", b"[],", b"1]"),
        "an array of texts": (b"[", b'"",', b"1]"),
        "one number": (b"", b"9", b""),
        "one long float": (b"0.", b"9", b""),
        "one text": (b'"', b"a", b'"'),
        "an open text": (b'"', b'\\"', b""),
        "escaped characters": (b'"', b"\\u0000", b'"'),
        "surrogates": (b'"', b"\\ud800", b'"'),
        "commas": (b"", b",", b""),
        "blanks": (b"{", b" ", b"}"),
        "equal keys": (b"{", b'"a":1,', b'"a":1}'),
        "no UTF-8": (b'"', b"\xff", b'"'),
        "separators": (b'{"a":"', "\u2028".encode(), b'"}'),
    }
    for name, (begin, middle, end) in wholes.items():
        yield name, begin + middle * ((size - len(begin) - len(end)) // len(middle)) + end
    yield "keys", b"{" + b",".join(b'"%d":1' % key for key in range(size // 10)) + b"}"


def _values(size: int) -> Iterator[tuple[str, bytes]]:
    """Of about so many bytes; and as many values as are permitted, which are read."""
    few = MAX_VALUES - 100
    deep = MAX_DEPTH - 8
    for name, one in {"numbers": b"1", "texts": b'""', "objects": b"{}", "lists": b"[]", "nulls": b"null", "digits": b"9" * 400}.items():
        yield name, b"[" + b",".join([one] * (size // (len(one) + 1))) + b"]"
        yield f"as many {name} as are permitted", b"[" + b",".join([one] * min(few // 2, size // (len(one) + 1))) + b"]"
    yield "keys", b"{" + b",".join(b'"%d":1' % key for key in range(size // 10)) + b"}"
    yield "as many keys as are permitted", b"{" + b",".join(b'"k%d":1' % key for key in range(min(few, size // 12))) + b"}"
    yield "nested lists", b"[" * deep + b"]" * deep
    yield "a text", b'"' + b"a" * size + b'"'
    yield "a text of escapes", b'"' + b"\\n" * (size // 2) + b'"'
    yield "a large number", b"9" * 30
    yield "a long key", b'{"' + b"k" * size + b'":1}'
    yield "long keys", b"{" + b",".join(b'"%02d' % key + b"k" * (size // 40) + b'":1' for key in range(40)) + b"}"


def _paths(right: Body, begin: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in right.items():
        yield (*begin, name)
        if isinstance(value, dict):
            yield from _paths(value, (*begin, name))


def _with(right: Body, path: tuple[str, ...], value: bytes) -> bytes:
    name, *rest = path
    inner = {**right, name: "PLACE"} if not rest else right
    if rest:
        before, after = json.dumps({**right, name: "PLACE"}).encode().split(b'"PLACE"')
        return before + _with(right[name], tuple(rest), value) + after
    before, after = json.dumps(inner).encode().split(b'"PLACE"')
    return before + value + after


def _padded(body: bytes, size: int) -> bytes:
    return body + b" " * max(0, size - len(body))
