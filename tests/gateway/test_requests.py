"""What holds for every request: bodies, keys, limits, names and headers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx
import pytest

from common.bus import Bus
from gateway_svc.http.application import all_families, described
from tests.gateway.behind_keys import behind_keys
from tests.gateway.openai import routes as openai
from tests.support.gateway.serving import client, gateway
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World, spec

JSON = {"content-type": "application/json"}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "too large"),
        (b'{"a": 1, "a": 2}', "'a' is given twice"),
        (b'{"b": {"a": 1, "a": 2}}', "'a' is given twice"),
        (b'{"a": "\\u0000"}', "NUL"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b'{"a": "\\udfff"}', "surrogate"),
        (f'{{"a": {nested(32)}}}'.encode(), "nested"),
        (b"[" * 500_000, "nested"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b"[]", "one object"),
        (b"", "not JSON"),
    ],
)
async def test_body_that_is_no_strict_json(wrong: httpx.AsyncClient, body: bytes, reason: str) -> None:
    answer = await wrong.post("/v1/tasks", content=body, headers=JSON)

    assert answer.status_code == 400
    assert reason in answer.json()["detail"]


async def test_depth_counts_no_brackets_in_texts(world: World, door: httpx.AsyncClient) -> None:
    answer = await door.post("/v1/tasks", json=spec(environment={"name": "toy", "options": {"text": '["{[' * 100}}))

    assert answer.status_code in (201, 400)
    assert "nested" not in answer.text


async def test_content_type_and_size(wrong: httpx.AsyncClient) -> None:
    body = json.dumps(spec()).encode()

    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(40):
            yield b" " * 65_536

    for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", ""):
        assert (await wrong.post("/v1/tasks", content=body, headers={"content-type": content_type})).status_code == 415
    announced = await wrong.post("/v1/tasks", content=b" " * (1024 * 1024 + 1), headers=JSON)
    streamed = await wrong.post("/v1/tasks", content=endless(), headers=JSON)
    assert (announced.status_code, streamed.status_code) == (413, 413)


async def test_every_answer_has_an_id_and_errors_are_problems(wrong: httpx.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("PUT", "/v1/tasks", 405),
        ("GET", "/healthz", 200),
        ("GET", "/openapi.json", 200),
    ):
        answer = await wrong.request(method, path)
        assert answer.status_code == status
        assert len(answer.headers["x-request-id"]) == 24
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/invoice?first=0", "first"),
        ("/v1/invoice?last=1767225600", "last"),
        ("/v1/audit?since=1865", "since"),
        ("/v1/tasks?dry_run=1", "dry_run"),
        ("/v1/tasks?dry_run=on", "dry_run"),
    ],
)
async def test_parameters_are_as_the_document_has_them(wrong: httpx.AsyncClient, path: str, field: str) -> None:
    answer = await (wrong.post(path, json=spec()) if "dry_run" in path else wrong.get(path))
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (400, [field])


async def test_method_that_a_path_has_not_is_answered_with_all_that_it_has(wrong: httpx.AsyncClient) -> None:
    for path, methods in (("/v1/tasks", "GET, POST"), ("/v1/tasks/a-1", "DELETE, GET, PUT"), ("/v1/fine_tuning/jobs", "GET, POST")):
        answer = await wrong.request("OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, methods)
        assert methods in answer.text


async def test_open_gateway_takes_names_of_this_machine_only(wrong: httpx.AsyncClient) -> None:
    """A page of the internet whose name leads to this machine would be an admin."""
    for host, status in (("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421)):
        assert (await wrong.get("/healthz", headers={"host": host})).status_code == status, host


async def test_browsers_are_let_in_from_named_origins_only(bus: Bus, nats_url: str) -> None:
    origins = ("https://app.example.org",)
    async with gateway(bus, nats_url, until_ready=False, cors_origins=origins) as address, client(address) as door:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        named = await door.options("/v1/tasks", headers=preflight | {"Origin": origins[0]})
        other = await door.options("/v1/tasks", headers=preflight | {"Origin": "https://evil.example"})
    async with gateway(bus, nats_url, until_ready=False) as address, client(address) as door:
        off = await door.get("/healthz", headers={"Origin": origins[0]})

    assert named.headers["access-control-allow-origin"] == origins[0]
    assert "access-control-allow-credentials" not in named.headers
    assert "access-control-allow-origin" not in other.headers
    assert "access-control-allow-origin" not in off.headers


@pytest.mark.parametrize(("proxies", "shown"), [(("127.0.0.0/8",), "/api/v1/tasks/"), ((), "/v1/tasks/"), (("10.0.0.1",), "/v1/tasks/")])
async def test_prefix_counts_from_named_proxies(world: World, nats_url: str, proxies: tuple[str, ...], shown: str) -> None:
    async with gateway(world.bus, nats_url, trusted_proxies=proxies) as address, client(address) as door:
        answer = await door.post("/v1/tasks", json=spec(), headers={"X-Forwarded-Prefix": "/api", "X-Forwarded-For": "1.2.3.4"})

    assert answer.headers["location"].startswith(shown)


async def read_all(address: str, *parts: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    url = httpx.URL(address)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def test_dribbled_requests_are_closed(bus: Bus, nats_url: str) -> None:
    """Each connection ends by itself: nothing is sent after these parts."""
    head = b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    async with gateway(bus, nats_url, until_ready=False, timeout_s=1.0) as address:
        silent, header, body, idle = await asyncio.gather(
            read_all(address),
            read_all(address, head),
            read_all(address, head + b"\r\n", b"{"),
            read_all(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /hea"),
        )

    assert (silent, header) == (b"", b"")
    assert body.startswith(b"HTTP/1.1 408")
    assert idle.startswith(b"HTTP/1.1 200")


ALL = {"reader", "member", "owner", "admin"}


PERMITTED = {
    ("GET", "/v1/tasks"): ALL,
    ("GET", "/v1/key"): ALL,
    ("GET", "/v1/failures"): ALL,
    ("GET", "/v1/invoice"): {"owner", "admin"},
    ("GET", "/v1/prices"): {"owner", "admin"},
    ("GET", "/v1/budgets"): {"owner", "admin"},
    ("GET", "/v1/audit"): {"owner", "admin"},
    ("POST", "/v1/failures/1/resend"): {"member", "owner", "admin"},
    ("PUT", "/v1/tasks/slow-1"): {"member", "owner", "admin"},
    ("GET", "/v1/tasks/slow-1/versions/1"): ALL,
    ("GET", "/v1/pools"): ALL,
    ("GET", "/v1/environments"): ALL,
    ("GET", "/v1/replicas"): ALL,
    ("GET", "/v1/executors"): ALL,
    ("GET", "/v1/slices"): ALL,
    ("GET", "/v1/usage"): {"owner", "admin"},
    ("GET", "/v1/tasks/slow-1"): ALL,
    ("GET", "/v1/tasks/slow-1/spec"): ALL,
    ("GET", "/v1/tasks/slow-1/why"): ALL,
    ("GET", "/v1/tasks/slow-1/events"): ALL,
    ("GET", "/v1/tasks/slow-1/steps"): ALL,
    ("GET", "/v1/tasks/slow-1/evaluations"): ALL,
    ("GET", "/v1/tasks/slow-1/usage"): {"owner", "admin"},
    ("GET", "/v1/tasks/slow-1/failures"): ALL,
    ("GET", "/v1/tasks/slow-1/samples"): ALL,
    ("GET", "/v1/tasks/slow-1/versions"): ALL,
    ("GET", "/v1/tasks/slow-1/versions/1/adapter.tar"): ALL,
    ("GET", "/v1/tasks/slow-1/versions/1/files/x"): ALL,
    ("POST", "/v1/tasks/slow-1/pause"): {"member", "owner", "admin"},
    ("POST", "/v1/tasks/slow-1/resume"): {"member", "owner", "admin"},
    ("POST", "/v1/tasks/slow-1/failures/1/resend"): {"member", "owner", "admin"},
    ("DELETE", "/v1/tasks/slow-1"): {"owner", "admin"},
    ("POST", "/v1/tasks"): {"member", "owner", "admin"},
    ("POST", "/v1/tasks/slow-2/cancel"): {"member", "owner", "admin"},
    ("GET", "/v1/aliases"): ALL,
    ("GET", "/v1/aliases/slow-1"): ALL,
    ("PUT", "/v1/aliases/slow-1"): {"member", "owner", "admin"},
    ("DELETE", "/v1/aliases/slow-1"): {"member", "owner", "admin"},
    ("GET", "/v1/webhooks"): {"owner", "admin"},
    ("GET", "/v1/webhooks/slow-1"): {"owner", "admin"},
    ("PUT", "/v1/webhooks/slow-1"): {"owner", "admin"},
    ("DELETE", "/v1/webhooks/slow-1"): {"owner", "admin"},
}
"""Route → roles of the tenant that may."""
BODIES: dict[tuple[str, str], dict[str, object]] = {
    ("POST", "/v1/tasks"): spec(steps=0),
    ("PUT", "/v1/tasks/slow-1"): spec(steps=0),
    ("PUT", "/v1/aliases/slow-1"): {"task": "slow-1", "version": 1},
    ("PUT", "/v1/webhooks/slow-1"): {"url": "https://x.example"},
}


SUBMISSIONS = {("POST", "/v1/tasks"), ("PUT", "/v1/tasks/slow-1")}


@dataclass
class Tried:
    method: str
    path: str
    key: str
    answer: httpx.Response

    def __str__(self) -> str:
        return f"{self.method} {self.path} as {self.key}: {self.answer.status_code} {self.answer.text[:300]}"


async def tried(address: str, keys: dict[str, str]) -> list[Tried]:
    found: list[Tried] = []
    for name, key in keys.items():
        async with client(address, key) as door:
            for method, path in PERMITTED:
                params = {"tenant": "acme"} if name == "admin" and path.endswith("s/slow-1") and "tasks" not in path else None
                answer = await door.request(method, path, params=params, json=BODIES.get((method, path)))
                found.append(Tried(method, path, name, answer))
    return found


async def test_each_role_may_what_it_may(keyed: Keyed, keyed_world: World) -> None:
    async with behind_keys(keyed, keyed_world) as (address, keys):
        answers = await tried(address, keys.valid)
        refused = await tried(address, keys.invalid)

    assert {one.answer.status_code for one in refused} == {401}
    assert len({one.answer.content for one in refused}) == 1
    assert refused[0].answer.headers["www-authenticate"].startswith("Bearer")
    for one in answers:
        permitted, status = PERMITTED[one.method, one.path], one.answer.status_code
        if one.key == "foreign":
            makes = one.path == "/v1/webhooks/slow-1" and one.method != "GET"  # one of the same name as the other tenant's
            is_own, is_of_another = makes or (one.method == "GET" and "slow-1" not in one.path), (one.method, one.path) in SUBMISSIONS
            assert status in ((200, 204) if is_own else (403,) if is_of_another else (404,)), one
        elif one.key in permitted:
            assert status in (200, 204, 404, 409) or (one.path == "/v1/tasks" and status == 400), one
        else:
            assert status == 403, one
            assert "slow" not in one.answer.text, one
            assert all(role in one.answer.json()["detail"] for role in permitted), one


async def test_only_admins_name_another_tenant(keyed: Keyed, keyed_world: World) -> None:
    async with behind_keys(keyed, keyed_world) as (address, keys):
        async with client(address, keys.valid["foreign"]) as other:
            named = await other.get("/v1/tasks", params={"tenant": "acme"})
            own = await other.get("/v1/tasks", params={"tenant": "globex"})
        async with client(address, keys.valid["admin"]) as admin:
            found = await admin.get("/v1/tasks", params={"tenant": "acme"})
            paused = await admin.post("/v1/tasks/slow-1/pause")
        async with client(address, keys.valid["member"]) as member:
            submitted = await member.post("/v1/tasks", json=spec())

    assert named.status_code == 403
    assert own.json()["tasks"] == []
    assert {task["task"] for task in found.json()["tasks"]} == {"slow-1", "slow-2"}
    assert paused.json()["state"] == "paused"
    assert (submitted.status_code, submitted.json()["tenant"]) == (201, "acme")


WITH_TESTS_OF_THEIR_OWN = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("POST", "/v1/tasks/slow-1/cancel"),
    ("GET", "/v1/events"),
    ("POST", "/v1/files"),
}
"""Routes without keys, the one that ends the task of these tests, a stream without end, and a form (`openai/test_files.py`)."""
VALUES = {"{task}": "slow-1", "{version}": "1", "{letter}": "1", "{name}": "x"}


def test_every_route_has_a_row() -> None:
    """Of every family: OpenAI's are in a table of their own."""
    found: set[tuple[str, str]] = set()
    for path, operations in described(all_families()).openapi()["paths"].items():
        for name, value in (VALUES | openai.VALUES).items():
            path = path.replace(name, "slow-1" if name == "{name}" and "tasks" not in path else value)
        if not path.startswith(("/v1/ask/", "/v1/jobs/")):  # test_door.py
            found |= {(method.upper(), path) for method in operations}

    own = {(method, path.replace("slow-2", "slow-1")) for method, path in PERMITTED}
    assert found == own | WITH_TESTS_OF_THEIR_OWN | set(openai.ROWS)
