"""Questions and jobs over HTTP: what is refused, by whom, and that it is what NATS refuses."""

import asyncio
from typing import Any

import httpx
import pytest

from common.access.roles import role_permissions
from common.messages.asks import MAX_ASK_BYTES
from common.messages.verbs import JOBS, QUESTIONS
from gateway_svc.http.application import all_families, described
from tests.support.gateway.entering import VALID, with_keys
from tests.support.gateway.serving import client, gateway
from tests.support.keyed import Keyed
from tests.support.matching import covers
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

JSON = {"content-type": "application/json"}
ROUTES = [*(f"/v1/ask/{verb}" for verb in QUESTIONS), *(f"/v1/jobs/{verb}" for verb in JOBS)]
PAUSE = {"task": "slow-1", "tenant": "acme"}


def _is_permitted(who: str, route: str) -> bool:
    """Whether NATS lets the key send what the route stands for, about its own tenant."""
    tenant, role = VALID[who]
    _, _, kind, verb = route.split("/")
    named = "*" if role == "admin" else tenant
    subject = f"ask.{tenant}.{verb}" if kind == "ask" else f"jobs.{verb}.{tenant}"
    return covers(role_permissions(role, named, "UKEY").publish, subject)


async def test_a_key_may_by_http_what_it_may_by_nats(keyed: Keyed, keyed_world: World) -> None:
    """A job without fields is never sent: it is wrong for those who may send it, and forbidden to others."""
    async with with_keys(keyed) as (made, keys), gateway(made.bus, keyed.url, access=made.access) as address:
        for who, key in keys.valid.items():
            async with client(address, key) as door:
                answers = await asyncio.gather(*(door.post(route, json={}) for route in ROUTES))
                for route, answer in zip(ROUTES, answers, strict=True):
                    assert (answer.status_code != 403) == _is_permitted(who, route), (who, route, answer.text)
                    assert answer.status_code in (200, 400, 403), (who, route, answer.text)
        for key in keys.invalid.values():
            async with client(address, key) as door:
                answers = [await door.post(route, content=b"{", headers=JSON) for route in ("/v1/ask/tasks", "/v1/jobs/pause")]
                assert [answer.status_code for answer in answers] == [401, 401]


async def test_another_tenants_task_is_neither_shown_nor_changed(keyed: Keyed, keyed_world: World) -> None:
    await keyed_world.run("slow-1", until="accepted")
    async with with_keys(keyed) as (made, keys), gateway(made.bus, keyed.url, access=made.access) as address:
        async with client(address, keys.valid["foreign"]) as foreign:
            asked, absent = [await foreign.post("/v1/ask/status", json={"task": task}) for task in ("slow-1", "slow-9")]
            job = await foreign.post("/v1/jobs/pause", json=PAUSE)
            named = [await foreign.post(path, params={"tenant": "acme"}, json=PAUSE) for path in ("/v1/ask/status", "/v1/jobs/pause")]
            events = await foreign.get("/v1/events", params={"tenant": "acme"})
        async with client(address, keys.valid["member"]) as member:
            status = (await member.post("/v1/ask/status", json={"task": "slow-1"})).json()["status"]
            own = await member.post("/v1/jobs/pause", json=PAUSE)
            await keyed_world.event("slow-1", "paused")
    assert (asked.status_code, asked.text.replace("slow-1", "slow-9")) == (404, absent.text)
    assert "no task 'slow-9' of tenant 'globex'" in absent.json()["detail"]
    assert [one.status_code for one in (job, *named, events)] == [403] * 4
    assert (status["state"], own.status_code, own.content) == ("running", 202, b"")


async def test_budget_refuses_a_submission_and_is_not_told_to_another_tenant(keyed: Keyed, keyed_world: World) -> None:
    nothing = {"tenant": "acme", "request": "r", "period": "total", "unit": "tokens", "amount": "0"}
    await keyed_world.run("a")
    async with with_keys(keyed) as (made, keys), gateway(made.bus, keyed.url, access=made.access) as address:
        submit = {"task": "mine-1", "tenant": "acme", "spec": spec()}
        async with client(address, keys.valid["admin"]) as admin, client(address, keys.valid["member"]) as member:
            assert (await admin.post("/v1/jobs/set-budget", json=nothing)).status_code == 202
            await eventually(lambda: _answers(member, submit, 402), 30)
        async with client(address, keys.valid["foreign"]) as foreign:
            assert await _answers(foreign, submit, 403)


async def _answers(door: httpx.AsyncClient, submit: dict[str, Any], status: int) -> bool:
    return (await door.post("/v1/jobs/submit", json=submit)).status_code == status


@pytest.mark.parametrize("path", ["/v1/ask/cost", "/v1/ask/terms", "/v1/jobs/stop"])
async def test_unknown_verb_is_answered_with_those_that_there_are(wrong: httpx.AsyncClient, path: str) -> None:
    answer = await wrong.post(path, json={})
    known = QUESTIONS if "/ask/" in path else JOBS
    assert answer.status_code == 404
    assert answer.json()["detail"].endswith(f"there are: {', '.join(known)}")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/ask/tasks", b"{", "not JSON"),
        ("/v1/ask/tasks", b"[]", "must be"),
        ("/v1/ask/tasks", b'{"most": 1, "most": 2}', "most"),
        ("/v1/ask/tasks", b'{"most": NaN}', "NaN"),
        ("/v1/ask/tasks", b'{"name": "\\u0000"}', "NUL"),
        ("/v1/ask/tasks", b'{"most": 0}', "most: must be 1 or more, not 0"),
        ("/v1/ask/tasks", b'{"limit": 1}', "limit: no such field"),
        ("/v1/ask/status", b'{"task": "A b"}', "task: must be small letters"),
        ("/v1/ask/chunk", b"{}", "task"),
        ("/v1/jobs/pause", b'{"task": "a"}', "tenant"),
        ("/v1/jobs/pause", b'{"task": "a", "tenant": "_all"}', "tenant: must be small letters"),
        ("/v1/jobs/pause", b'{"task": "a", "tenant": "a.b"}', "tenant: must be small letters"),
        ("/v1/jobs/upload-file", b'{"data": "?"}', "data"),
        ("/v1/jobs/pause?task=a", b"{}", "task: there is no such parameter here"),
        ("/v1/ask/tasks", b'{"states": [%s 1]}' % (b"1," * 7_000), "states"),
        ("/v1/jobs/submit", b'{"spec": {"a": [%s 1]}}' % (b"1," * 10_000), "10000"),
    ],
)
async def test_garbage_is_named_and_sent_nowhere(wrong: httpx.AsyncClient, path: str, body: bytes, said: str) -> None:
    """There is no scheduler here, so what is sent to one is answered 503."""
    answer = await wrong.post(path, content=body, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]


async def test_too_much_and_another_type_are_refused(wrong: httpx.AsyncClient) -> None:
    large = await wrong.post("/v1/ask/tasks", content=b'{"text": "%s"}' % (b"a" * MAX_ASK_BYTES), headers=JSON)
    larger = await wrong.post("/v1/jobs/submit", content=b" " * (1024 * 1024 + 1), headers=JSON)
    types = [await wrong.post(path, content=b"{}", headers={"content-type": "text/plain"}) for path in ("/v1/ask/tasks", "/v1/jobs/pause")]
    assert [one.status_code for one in (large, larger, *types)] == [413, 413, 415, 415]
    header = await wrong.post("/v1/jobs/pause", json=PAUSE, headers={"Idempotency-Key": "a b"})
    assert (header.status_code, header.json()["errors"][0]["field"]) == (400, "idempotency-key")


async def test_job_that_is_sent_twice_under_one_key_is_one_job(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    prune = {"tenant": "acme", "request": "r", "dry_run": True}
    for key in ("k-1", "k-1", "k-2", None, None):
        headers = {"Idempotency-Key": key} if key else {}
        assert (await door.post("/v1/jobs/prune", json=prune, headers=headers)).status_code == 202
    await world.rows_become("SELECT count(*) FROM events WHERE event = 'pruned'", [(4,)])


async def test_events_of_one_task_are_streamed_alone(world: World, door: httpx.AsyncClient) -> None:
    async def first(**params: Any) -> list[str]:
        async with door.stream("GET", "/v1/events", params=params) as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: listening":
                    ready.release()
                elif line.startswith("data: {") and "at_s" in line:
                    return [line]
        return []

    ready = asyncio.Semaphore(0)
    both = asyncio.gather(first(task="slow-2"), first(task="none"))
    await ready.acquire()
    await ready.acquire()
    await world.run("slow-1", until="accepted")
    await door.post("/v1/jobs/prune", json={"tenant": "acme", "request": "r", "dry_run": True})
    await world.submit("slow-2")
    [task], [none] = await asyncio.wait_for(both, 60)
    assert '"task":"slow-2"' in task and '"event":"pruned"' in none


def test_document_has_each_verb_with_its_messages() -> None:
    paths = described(all_families()).openapi()["paths"]
    assert {path for path in paths if path.startswith(("/v1/ask/", "/v1/jobs/"))} == set(ROUTES)
    for verb, question in QUESTIONS.items():
        found = paths[f"/v1/ask/{verb}"]["post"]
        sent, answered = found["requestBody"], found["responses"]["200"]
        assert [one["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2] for one in (sent, answered)] == [
            question.request.__name__,
            question.answer.__name__,
        ]
