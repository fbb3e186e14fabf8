"""What is not answered, and with which words: other tenants' data, wrong requests, too many at once, stores that do not answer."""

import asyncio
import json
import time
from pathlib import Path

import nats
import psycopg
import pytest
from sqlalchemy import make_url, text

from common import streams
from common.bus import Bus
from common.messages import AskRefused, EventsAnswer, TasksAnswer
from common.streams import KIND_HEADER
from scheduler_svc.base import metrics
from scheduler_svc.base.database import Database
from scheduler_svc.verbs.asks import MAX_CONCURRENT_PER_TENANT, WAITING_PER_TENANT
from tests.support.scheduler.asking import Asker, answering, asker, world_with_blobs
from tests.support.scheduler.finished import settled
from tests.support.scheduler.stages import spec
from tests.support.scheduler.statements import execute
from tests.support.waiting import eventually

GARBAGE = [
    ("tasks", b"\xff\xfe", "not a ask-tasks.1 message"),
    ("tasks", b"[1]", "not a ask-tasks.1 message"),
    ("status", b"{}", "task: required, but not given"),
    ("status", b'{"task": "Not An Id"}', "task: must be small letters, digits and hyphens, 63 at most"),
    ("status", b'{"task": "a\\u0000"}', "task: must be small letters, digits and hyphens, 63 at most"),
    ("status", b'{"task": "a"', "not a ask-task.1 message"),
    ("events", b'{"task": "a", "after": -1}', "after: must be 0 or more"),
    ("events", b'{"task": "a", "after": 1e30}', "after: must be a whole number"),
    ("adapter", b'{"task": "a", "version": 99999999999}', "version: must be 2147483647 or less"),
    ("chunk", b'{"task": "a", "version": 1, "offset": "x"}', "offset: must be a whole number"),
    ("chunk", b'{"task": "a", "version": 1}', "offset: required, but not given"),
    ("tasks", b'{"cursor": "%"}', "cursor: must be the cursor that the page before gave"),
    ("tasks", b'{"cursor": "0.5~a"}', "cursor: it is not one of a listing by 'id'"),
    ("tasks", b'{"cursor": "a", "sort": "reward"}', "cursor: it is not one of a listing by 'reward'"),
    ("tasks", b'{"cursor": "x~a", "sort": "created"}', "cursor: it is not one of a listing by 'created'"),
    ("tasks", b'{"cursor": "99999999999999999999999~a", "sort": "created"}', "cursor: it is not one of a listing by 'created'"),
    ("tasks", b'{"sort": "cost"}', "sort: must be 'id', 'created', 'reward' or 'state'"),
    ("tasks", b'{"states": ["asleep"]}', "states.0: must be 'submitted',"),
    ("tasks", b'{"text": "a\\u0000"}', "text: must be a text without null characters"),
    ("tasks", b'{"text": ""}', "text: must not be empty"),
    ("tasks", b'{"most": 201}', "most: must be 200 or less"),
    ("steps", b"{}", "task: required, but not given"),
    ("steps", b'{"task": "a", "after": 2147483648}', "after: must be 2147483647 or less"),
    ("samples", b'{"task": "a", "step": 0}', "step: must be 1 or more"),
    ("timeline", b'{"cursor": "a"}', "cursor: must be the cursor that the page before gave"),
    ("timeline", b'{"steps": 1001}', "steps: must be 1000 or less"),
    ("versions", b'{"task": "a", "after": -1}', "after: must be 0 or more"),
    ("evaluations", b'{"task": "a", "protocol": "A B"}', "protocol: must be small letters, digits and hyphens, 40 at most"),
    ("spec", b'{"task": ""}', "task: must be small letters, digits and hyphens, 63 at most"),
    ("replicas", b"[]", "not a ask-deployment.1 message"),
    ("failures", b"{" + b" " * 20_000 + b"}", "the request has 20002 bytes, the maximum is 16384"),
    ("why-not", b"{}", "no verb 'why-not'; there are: tasks, status, events"),
]


@pytest.mark.parametrize(("verb", "body", "reason"), GARBAGE, ids=range(len(GARBAGE)))
async def test_wrong_request_gets_one_sentence(bus: Bus, nats_url: str, database: Database, verb: str, body: bytes, reason: str) -> None:
    async with answering(bus, database), asker(nats_url) as asks:
        kind, answer = await asks.raw("acme", verb, body)
        refused = AskRefused.decode(answer)
        assert (kind, refused.code) == (AskRefused.kind, "invalid")
        assert reason in refused.reason and "\n" not in refused.reason and len(refused.reason) < 400
        assert (await asks.ask(TasksAnswer, "acme", "tasks")).tasks == [], "the replica goes on"


async def test_asks_beyond_the_rate_are_refused_and_others_answered(bus: Bus, nats_url: str, database: Database) -> None:
    async with answering(bus, database), asker(nats_url) as asks:
        async with database.transaction() as tx:
            await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme'), ('globex')"))
            await tx.connection.execute(text("INSERT INTO limits (tenant, asks_per_minute) VALUES ('acme', 3)"))
        for _ in range(3):
            await asks.ask(TasksAnswer, "acme", "tasks")
        code, reason = await asks.refused("acme", "tasks")
        assert code == "busy"
        assert reason.startswith("asks_per_minute: at most 3 asks a minute, 3 are used; ask later in ")
        await asks.ask(TasksAnswer, "globex", "tasks")
        await asks.ask(TasksAnswer, None, "tasks")
        await execute(database, "UPDATE limits SET asks_per_minute = 4 WHERE tenant = 'acme'")
        await asks.ask(TasksAnswer, "acme", "tasks")
        assert (await asks.refused("acme", "tasks"))[0] == "busy"
        await execute(database, "UPDATE limits SET asks_per_minute = 9223372036854775807 WHERE tenant = 'acme'")
        await asks.ask(TasksAnswer, "acme", "tasks")


async def test_message_of_another_kind_and_a_name_that_no_tenant_can_have(bus: Bus, nats_url: str, database: Database) -> None:
    async with answering(bus, database), asker(nats_url) as asks:
        kind, answer = await asks.raw("acme", "tasks", b"{}", {KIND_HEADER: "ask-tasks.2"})
        assert (kind, AskRefused.decode(answer).reason) == (AskRefused.kind, "'tasks' takes 'ask-tasks.1', not 'ask-tasks.2'")
        assert "is no name of a tenant" in (await asks.refused("ACME", "tasks"))[1]


async def test_another_tenants_task_and_none_are_one_answer(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("theirs", spec(tenant="globex"))
        await settled(world)
        fields = {
            "status": {},
            "why": {},
            "spec": {},
            "steps": {},
            "versions": {},
            "samples": {},
            "evaluations": {"version": 1},
            "adapter": {"version": 1},
            "chunk": {"version": 1, "offset": 0},
        }
        for verb, others in fields.items():
            theirs, absent = [await asks.refused("acme", verb, task=task, **others) for task in ("theirs", "absent")]
            assert (theirs[0], theirs[1].replace("theirs", "absent")) == absent == ("unknown", "no task 'absent' of tenant 'acme'")
        events = [await asks.ask(EventsAnswer, "acme", "events", task=task) for task in ("theirs", "absent")]
        assert events[0] == events[1] == EventsAnswer(events=[], last=0)
        # In turn, since the machine's own speed changes; what else runs there adds to most, and to either.
        pairs = [[await timed(asks, task) for task in ("theirs", "absent")] for _ in range(60)]
        fastest = [min(spent) for spent in zip(*pairs, strict=True)]
        assert max(fastest) < 1.5 * min(fastest) + 0.003, pairs


async def timed(asks: Asker, task: str) -> float:
    began = time.perf_counter()
    await asks.refused("acme", "chunk", task=task, version=1, offset=0)
    return time.perf_counter() - began


async def test_subject_alone_says_whose_data_it_is(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("theirs", spec(tenant="globex"))
        kind, body = await asks.raw("acme", "status", json.dumps({"task": "theirs", "tenant": "globex"}).encode())
        assert (kind, AskRefused.decode(body).code) == (AskRefused.kind, "unknown")


async def test_answers_go_to_inboxes_only(bus: Bus, nats_url: str, database: Database) -> None:
    """The caller names the subject of the reply: on others' events or among jobs an answer must not appear."""
    client = await nats.connect(nats_url)
    try:
        heard = await client.subscribe("events.>")
        async with answering(bus, database), asker(nats_url) as asks:
            for reply in ("events.globex.a", "jobs.submit.globex", "trajectories.scored.a.0-0", "weight-updated.tiny.a"):
                await client.publish(streams.ask("acme", "tasks"), b"{}", reply=reply)
            await client.flush()
            for _ in range(20):
                await asks.raw("acme", "tasks")
        assert await bus.streams.subjects(streams.EVENTS) == await bus.streams.subjects(streams.JOBS) == {}
        assert heard.pending_msgs == 0
    finally:
        await client.close()


async def test_asks_of_one_tenant_leave_room_for_others(bus: Bus, nats_url: str, database: Database) -> None:
    """Rows that are locked hold one tenant's asks up; another's are answered meanwhile, and too many are refused at once."""
    async with answering(bus, database), asker(nats_url) as asks:
        async with database.transaction() as tx:
            await tx.connection.execute(text("LOCK TABLE dead_letters"))
            held = [asyncio.create_task(asks.raw("acme", "failures")) for _ in range(WAITING_PER_TENANT)]
            await eventually(lambda: _waits(database, MAX_CONCURRENT_PER_TENANT))
            code, reason = await asks.refused("acme", "pools")
            assert (code, reason) == ("busy", "too many asks wait; ask again in a second")
            assert (await asks.raw("globex", "pools"))[0] == "pools-answer.1"
            assert not any(one.done() for one in held)
        kinds = {kind for kind, _ in await asyncio.gather(*held)}
        assert kinds == {"failures-answer.1"}
        await asks.raw("acme", "pools")


async def _waits(database: Database, count: int) -> bool:
    async with database.transaction() as tx:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return (await tx.connection.execute(text(waiting))).scalar_one() == count


async def test_slow_answer_ends_at_its_limit(bus: Bus, nats_url: str, database: Database) -> None:
    async with answering(bus, database, timeout_s=0.3), asker(nats_url) as asks:
        async with database.transaction() as tx:
            await tx.connection.execute(text("LOCK TABLE dead_letters"))
            assert await asks.refused("acme", "failures") == ("unavailable", "no answer within 0.3 s; ask again later")

        async def is_answered() -> bool:
            return (await asks.raw("acme", "failures"))[0] == "failures-answer.1"

        await eventually(is_answered)  # a busy machine has not always answered within 0.3 s


async def test_absent_database_is_said_without_naming_it(bus: Bus, nats_url: str, database_url: str) -> None:
    database = await Database.connect(database_url)
    async with answering(bus, database), asker(nats_url) as asks:
        name = database_url.rpartition("/")[2]
        with psycopg.connect(
            make_url(database_url).set(drivername="postgresql", username="marlaas", database="postgres").render_as_string(False)
        ) as other:
            other.autocommit = True
            other.execute(f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false".encode())
        await database.close()  # its connections go; no new one is let in
        code, reason = await asks.refused("acme", "tasks")
        assert (code, reason) == ("unavailable", "PostgreSQL or the blob store does not answer the scheduler; ask again later")
    await database.close()


async def test_two_replicas_share_the_asks(bus: Bus, nats_url: str, database: Database) -> None:
    before = {one: metrics.ASKS.labels(one)._value.get() for one in ("answered", "busy")}
    async with answering(bus, database), asker(nats_url) as asks:
        async with await Bus.connect(nats_url, "second") as second, answering(second, database):
            for _ in range(60):
                assert (await asks.ask(TasksAnswer, "acme", "tasks")).tasks == []
            client = second._connection.client
            assert 0 < client.stats["in_msgs"] < 60 + 20, "each is answered once, by one of them"
        assert (await asks.ask(TasksAnswer, "acme", "tasks")).tasks == [], "the one that stays answers"
    assert metrics.ASKS.labels("answered")._value.get() - before["answered"] == 61
