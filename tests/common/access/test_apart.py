"""Two tenants with keys on a real server: nothing that one sends has an effect on the other's messages, or an answer from them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from common import streams
from common.access.credentials import read_credentials
from common.access.roles import Role
from common.bus import Bus
from common.messages.verbs import JOBS
from tests.support.buses import HASTY
from tests.support.keyed import Keyed

JOB = "jobs.submit.{}"
HEADERS = {
    "Nats-Msg-Id": ["theirs", "", "x" * 60_000, "a b:c"],
    "Nats-Expected-Stream": ["JOBS", "JOBS_globex", "EVENTS"],
    "Nats-Expected-Last-Msg-Id": ["zzz", "theirs"],
    "Nats-Expected-Last-Sequence": ["0", "1", "2", "99999999", "-1"],
    "Nats-Expected-Last-Subject-Sequence": ["0", "1", "99999999"],
    "Nats-Expected-Last-Subject-Sequence-Subject": ["jobs.>", JOB.format("globex"), "from.globex.>"],
    "Nats-Rollup": ["all", "sub"],
    "Nats-TTL": ["1s", "never", "x"],
    "Nats-Marker-Reason": ["Purge"],
    "Nats-Incr": ["+1"],
    "Nats-Counter-Sources": ["{}"],
    "Nats-Batch-Id": ["theirs"],
    "Nats-Batch-Sequence": ["1"],
    "Nats-Batch-Commit": ["1", "eob"],
    "Nats-Schedule": ["@every 1s", "@at 2020-01-01T00:00:00Z"],
    "Nats-Schedule-Target": ["jobs.cancel.globex", "from.globex.jobs.cancel.globex"],
    "Nats-Schedule-Source": [JOB.format("globex")],
    "Nats-Schedule-TTL": ["1s"],
    "Nats-Schedule-Rollup": ["sub"],
    "Nats-Schedule-Time-Zone": ["UTC"],
    "Nats-Schedule-Next": ["purge"],
    "Nats-Scheduler": [JOB.format("globex")],
    "Nats-Stream-Source": ["JOBS_globex 1 > > >"],
    "Nats-Stream": ["JOBS_globex"],
    "Nats-Subject": [JOB.format("globex")],
    "Nats-Sequence": ["1"],
    "Nats-Last-Sequence": ["1"],
    "Nats-Trace-Dest": ["events.globex.t", "_INBOX.x", "jobs.cancel.globex"],
    "Nats-Trace-Only": ["true"],
    "Nats-Request-Info": ['{"acc":"globex","user":"owner"}'],
    "Nats-Required-Api-Level": ["99"],
    "KV-Operation": ["PURGE", "DEL"],
    "Status": ["100", "503"],
}
"""Those that nats-server acts on, or writes (`server/stream.go`, `scheduler.go`, `msgtrace.go`, `client.go`), with values."""
TOGETHER = {
    "a batch": {"Nats-Batch-Id": "theirs", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    "a schedule": {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": "jobs.cancel.globex"},
    "a traced one": {"Nats-Trace-Dest": "events.globex.t", "Nats-Trace-Only": "true"},
    "a subject's sequence": {"Nats-Expected-Last-Subject-Sequence": "7", "Nats-Expected-Last-Subject-Sequence-Subject": "jobs.>"},
}


@asynccontextmanager
async def bare(server: Keyed, tenant: str, role: Role = "member") -> AsyncIterator[Client]:
    """A client of another program, with a new key of the tenant."""
    client, creds = Client(), server.key(tenant, role)
    await client.connect(server.url, user_credentials=str(creds), inbox_prefix=read_credentials(creds).inbox, error_cb=ignore)
    try:
        yield client
    finally:
        await client.close()


async def ignore(_: Exception) -> None:
    pass


async def publish(client: Client, tenant: str, body: bytes, headers: dict[str, str], timeout_s: float = 60.0) -> dict[str, Any]:
    """What NATS answers; empty where it does not."""
    try:
        return json.loads((await client.request(JOB.format(tenant), body, timeout=timeout_s, headers=headers)).data)
    except TimeoutError:
        return {}


@asynccontextmanager
async def reading(server: Keyed) -> AsyncIterator[Bus]:
    """A connection that may read every stream."""
    async with await Bus.connect(server.url, "reading", creds=server.stages_key(), timings=HASTY) as bus:
        yield bus


async def stored(bus: Bus, tenant: str) -> list[bytes]:
    return [one.body async for one in bus.streams.stored(streams.own_jobs(tenant), "jobs.>")]


async def test_id_of_one_tenants_job_is_no_duplicate_of_anothers(keyed: Keyed) -> None:
    async with bare(keyed, "acme") as acme, bare(keyed, "globex") as globex, reading(keyed) as bus:
        await acme.request("jobs.cancel.acme", b"a", timeout=60, headers={"Nats-Msg-Id": "x"})
        answer = await publish(globex, "globex", b"g", {"Nats-Msg-Id": "x"})
        assert "duplicate" not in answer
        again = await publish(globex, "globex", b"g", {"Nats-Msg-Id": "x"})
        assert again["duplicate"] is True
        assert again["seq"] == answer["seq"]
        assert await stored(bus, "globex") == [b"g"]


async def test_no_header_acts_on_another_tenants_jobs_or_tells_of_them(keyed: Keyed) -> None:
    """Each header that NATS acts on, with hostile values. Between them the other tenant sends a job, which is always stored."""
    tried = [{name: value} for name, values in HEADERS.items() for value in values] + list(TOGETHER.values())
    told, heard, number = list[str](), list[str](), 0

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async with AsyncExitStack() as stack:
        acme, globex = [await stack.enter_async_context(bare(keyed, tenant)) for tenant in ("acme", "globex")]
        bus = await stack.enter_async_context(reading(keyed))
        await globex.subscribe("events.globex.>", cb=hear)
        await globex.flush()
        for number, headers in enumerate(tried):
            own = {"Nats-Msg-Id": "theirs" if number == 0 else f"secret-{number}"}
            before = await publish(globex, "globex", b"g", own)
            answer = await publish(acme, "acme", b"a", headers, 60 if number == 1 else 0.5)  # NATS answers not all of them
            told.append(json.dumps(answer))
            assert before["seq"] == streams.FIRST_OWN_JOB + number, headers
            assert before["stream"] == "JOBS_globex"
        assert await stored(bus, "globex") == [b"g"] * len(tried)
        assert not any("secret" in text or "globex" in text for text in told)
        assert json.loads(told[1])["seq"] <= streams.FIRST_OWN_JOB + 1
        assert await bus.streams.subjects(streams.JOBS) == {}
        await globex.flush()
    assert heard == []


async def test_full_queue_of_one_tenant_refuses_no_job_of_another(keyed: Keyed) -> None:
    async with bare(keyed, "acme") as acme, bare(keyed, "acme") as second, bare(keyed, "globex") as globex:
        subjects = [f"jobs.{verb}.acme" for verb in ("submit", "cancel", "pause")]
        answers = [json.loads((await acme.request(subject, b"x", timeout=60)).data) for subject in subjects for _ in range(100)]
        refused = [answer["error"]["err_code"] for answer in answers if "error" in answer]
        assert (len(answers) - len(refused), set(refused)) == (200, {10077})
        assert "error" in await publish(second, "acme", b"x", {})
        assert "error" not in await publish(globex, "globex", b"g", {})


async def test_key_hears_answers_to_itself_alone(keyed: Keyed) -> None:
    """Also where the reader asks for them by the owner's own subjects, and where the owner's client names its inbox."""
    refused, heard = list[str](), list[str]()
    creds = {role: keyed.key("acme", role) for role in ("owner", "reader")}
    owners = read_credentials(creds["owner"]).inbox

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(await keyed.connect("scheduler"))

        async def answer(message: Msg) -> None:
            await message.respond(b"a secret")

        await scheduler._connection.client.subscribe("ask.*.*", cb=answer)
        reader, owner = Client(), Client()
        await reader.connect(keyed.url, user_credentials=str(creds["reader"]), error_cb=on_error)
        await owner.connect(keyed.url, user_credentials=str(creds["owner"]), inbox_prefix=owners)
        stack.push_async_callback(reader.close)
        stack.push_async_callback(owner.close)
        for subject in ("_INBOX.>", "_INBOX.*.>", f"{owners}.>", f"{owners}.*", "_INBOX.*", ">", "_R_.>"):
            await reader.subscribe(subject, cb=hear)
        await asyncio.gather(scheduler._connection.client.flush(), reader.flush())
        assert (await owner.request("ask.acme.audit", b"", timeout=60)).data == b"a secret"
        await owner.publish(f"{owners}.x", b"")
        await reader.flush()
    assert heard == []
    assert len(refused) == 7


@pytest.mark.parametrize("role", ["reader", "member", "owner"])
async def test_answer_to_any_reply_subject_is_no_event_and_no_job(keyed: Keyed, role: Role) -> None:
    """NATS passes an answer on as a job, under a verb of its own making, which the scheduler drops."""
    heard, forged = list[str](), "U" + "A" * 55
    replies = ["events.acme.t", "events.acme.t.x", "jobs.cancel.acme", f"jobs.cancel.acme.{forged}", "ask.acme.audit"]
    asked = list[str]()

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    async with AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(await keyed.connect("scheduler"))
        client = scheduler._connection.client

        async def answer(message: Msg) -> None:
            asked.append(message.subject)
            await message.respond(b"an answer")

        await client.subscribe("ask.*.*", cb=answer)
        evil, owner = [await stack.enter_async_context(bare(keyed, "acme", one)) for one in (role, "owner")]
        await owner.subscribe("events.acme.>", cb=hear)
        await asyncio.gather(owner.flush(), client.flush())
        for reply in replies:
            await evil.publish("ask.acme.status", b"", reply=reply)
            if role != "reader":
                await evil.publish("jobs.cancel.acme", b"own", reply=reply)
        await evil.flush()
        assert (await evil.request("ask.acme.status", b"", timeout=60)).data == b"an answer"
        await scheduler.publish_raw("events.acme.last", b"", "last", {})
        await asyncio.gather(client.flush(), owner.flush())
        bus = await stack.enter_async_context(reading(keyed))
        jobs = [one async for one in bus.streams.stored(streams.own_jobs("acme"), "jobs.>")]
    assert heard == ["events.acme.last"]
    bodies = [one.body for one in jobs if streams.token(one.subject, 1) in JOBS]
    assert bodies == [b"own"] * (0 if role == "reader" else len(replies))
