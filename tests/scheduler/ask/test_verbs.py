"""Every verb of `ask.<tenant>.<verb>`, against real NATS and PostgreSQL."""

import hashlib
import json
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import msgpack
import pytest
from sqlalchemy import extract, select, text

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.messages import (
    AdapterAnswer,
    ChunkAnswer,
    ControlTask,
    DeadLetter,
    EnvironmentsAnswer,
    EventsAnswer,
    FailuresAnswer,
    PoolsAnswer,
    StatusAnswer,
    TasksAnswer,
    TaskStatus,
    UsageAnswer,
)
from common.messages.asks import CHUNK_BYTES, MAX_ANSWER_BYTES
from common.pools import read_pools
from scheduler_svc.base.database import Database
from scheduler_svc.base.tables import steps
from tests.support.scheduler.asking import answering, asker, world_with_blobs
from tests.support.scheduler.finished import settled
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually, eventually_equals

TASK = """
INSERT INTO tasks
    (submission, id, tenant, name, pool, spec, state, reason, priority, steps, group_size, groups_per_step, max_staleness,
    trajectory_tokens)
SELECT '', :tenant || '-' || lpad(n::text, 4, '0'), :tenant, 'n', 'tiny', '{}', 'failed', repeat('x', :reason), 0, 1, 2, 2, 0, 9
FROM generate_series(1, :count) n
"""
EVENT = """
INSERT INTO events (number, tenant, task, event, data)
SELECT 1 + count(*), 'acme', 'a', 'paused', jsonb_build_object('text', repeat('x', :size)) FROM events
"""


async def run_tasks(world: World) -> None:
    await world.run("a")
    await world.run("b", spec(tenant="globex"))
    await settled(world)


async def test_status_and_tasks_are_those_of_the_bucket(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await run_tasks(world)
        kept = {task: await bus.kv.get(streams.TASKS_BUCKET, task, TaskStatus) for task in ("a", "b")}
        for tenant, tasks in (("acme", ["a"]), ("globex", ["b"]), ("other", []), (None, ["a", "b"])):
            found = (await asks.ask(TasksAnswer, tenant, "tasks")).tasks
            assert [status.task for status in found] == tasks
            for status in found:
                one = (await asks.ask(StatusAnswer, tenant, "status", task=status.task)).status
                assert one == status
                bucket = kept[status.task]
                assert bucket is not None
                assert one == bucket.model_copy(update={"updated_s": one.updated_s})
                assert one.adapter is not None and one.version == 3


async def test_status_of_a_running_task_has_the_time_at_which_its_pace_ends_it(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path
) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        world.stages.withheld = lambda group, member: group.version >= 3
        await world.begin("a", spec(steps=9, algorithm={"group_size": 2, "groups_per_step": 2, "max_staleness": 0}), batches=3)

        async def shown() -> TaskStatus:
            return (await asks.ask(StatusAnswer, "acme", "status", task="a")).status

        async def is_stuck() -> bool:
            bucket = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
            found = await shown()
            return bucket is not None and bucket.version == found.version == 3 and bucket.expected_end_s == found.expected_end_s

        await eventually(is_stuck)
        async with world.database.statements() as connection:
            trained = select(extract("epoch", steps.c.trained_at)).where(steps.c.trained_at.is_not(None)).order_by(steps.c.version)
            times = [float(row) for row in (await connection.execute(trained)).scalars()]
        found = await shown()
        each_s = (times[-1] - times[0]) / (len(times) - 1)
        assert found.expected_end_s == pytest.approx(times[-1] + each_s * (9 - found.version), abs=1e-3)
        await world.control("pause", "a", until="paused")
        assert (await shown()).expected_end_s is None, "a task that is paused has no pace"


async def test_events_are_paged_by_number_and_outlive_the_stream(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await run_tasks(world)
        await bus.streams.purge(streams.EVENTS, "events.>")
        found = await asks.ask(EventsAnswer, "acme", "events", task="a")
        assert [event.event for event in found.events] == ["accepted", "step", "step", "step", "finished"]
        assert [event.number for event in found.events] == [1, 2, 3, 4, 5] and found.last == 5
        assert {(event.tenant, event.task) for event in found.events} == {("acme", "a")}
        assert [event.number for event in (await asks.ask(EventsAnswer, "acme", "events", task="a", after=3)).events] == [4, 5]
        assert (await asks.ask(EventsAnswer, None, "events", task="b")).events[0].tenant == "globex"
        for tenant, task in (("acme", "b"), ("acme", "nothing"), (None, "nothing")):
            assert await asks.ask(EventsAnswer, tenant, "events", task=task) == EventsAnswer(events=[], last=0)


async def test_usage_is_what_the_ledger_and_the_store_hold(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await run_tasks(world)
        await world.run("gone")
        await world.control("delete", "gone", until="deleted")
        ours = await asks.ask(UsageAnswer, "acme", "usage")
        assert [one.task for one in ours.tasks] == ["a"] and [one.tenant for one in ours.tenants] == ["acme"]
        [tenant], [task] = ours.tenants, ours.tasks
        [expected] = await world.rows(
            "SELECT prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens, live_tasks FROM tenant_usage WHERE tenant = 'acme'"
        )
        said = (tenant.prompt_tokens, tenant.sampled_tokens, tenant.trained_tokens, tenant.evaluation_tokens, tenant.live_tasks)
        assert said == tuple(expected) and tenant.sampled_tokens > task.sampled_tokens > 0
        [stored] = await world.rows("SELECT adapter_bytes, checkpoint_bytes, batch_bytes, bytes FROM task_storage WHERE task = 'a'")
        assert (task.adapter_bytes, task.checkpoint_bytes, task.batch_bytes, task.stored_bytes) == tuple(stored)
        assert task.stored_bytes > 0
        assert ours.store_bytes is None, "how full the store is concerns the operator"
        everybody = await asks.ask(UsageAnswer, None, "usage")
        assert [one.tenant for one in everybody.tenants] == ["acme", "globex"]
        assert everybody.store_bytes == (await Blobs(bus).usage()).used_bytes
        assert (await asks.ask(UsageAnswer, "nobody", "usage")).tenants == []


async def test_failures_are_letters_about_own_tasks_and_own_jobs(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await run_tasks(world)
        turns = [("turn", task, streams.turn("toy", task, "0-0")) for task in ("a", "b", "unknown")]
        jobs = [("jobs", "none", subject) for subject in ("jobs.submit.acme", "jobs.submit.globex.key")]
        letters_in_order = [*turns[:2], *jobs, turns[2], ("settle", "none", "weight-updated.tiny")]
        for number, (stage, task, subject) in enumerate(letters_in_order):
            letter = DeadLetter(stage=stage, subject=subject, reason="disk full", attempts=2, headers={}, body=b"", sequence=1)
            await bus.publish(Outgoing(streams.failed(stage, task), letter, f"letter {number}"))
        await world.rows_become("SELECT count(*) FROM dead_letters", [(6,)])

        async def letters(tenant: str | None, **fields: Any) -> list[tuple[int, str | None, str | None]]:
            found = await asks.ask(FailuresAnswer, tenant, "failures", **fields)
            assert not found.has_more
            return [(one.letter, one.tenant, one.task) for one in found.failures]

        assert await letters("acme") == [(1, "acme", "a"), (3, "acme", None)]
        assert await letters("globex") == [(2, "globex", "b"), (4, "globex", None)]
        assert await letters("acme", task="a") == [(1, "acme", "a")]
        assert await letters("acme", after=1) == [(3, "acme", None)]
        assert await letters("acme", task="b") == await letters("acme", task="nothing") == []
        assert [letter for letter, _, _ in await letters(None)] == [1, 2, 3, 4, 5, 6]
        [first] = (await asks.ask(FailuresAnswer, "acme", "failures", task="a")).failures
        assert (first.stage, first.subject, first.reason, first.attempts) == (*turns[0][::2], "disk full", 2)


async def test_environments_and_pools_of_the_deployment(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path), asker(nats_url) as asks:
        expected = EnvironmentsAnswer(environments=["toy"], sandboxes=["none: tasks that need one are refused"])
        await eventually_equals(lambda: asks.ask(EnvironmentsAnswer, "acme", "envs"), expected)
        [pool] = (await asks.ask(PoolsAnswer, "acme", "pools")).pools
        assert (pool.name, pool.model, pool.context_tokens, pool.max_rank) == ("tiny", "models/tiny", 512, 16)


async def test_place_of_a_model_on_the_server_is_not_told(bus: Bus, nats_url: str, database: Database, tmp_path: Path) -> None:
    (tmp_path / "secret" / "letters").mkdir(parents=True)
    (tmp_path / "pools.toml").write_text('[own]\nmodel = "secret/letters"\n[hub]\nmodel = "Qwen/Qwen3-0.6B"\nrevision = "c1899de"\n')
    async with answering(bus, database, pools=read_pools(tmp_path / "pools.toml")), asker(nats_url) as asks:
        for tenant in ("acme", None):
            kind, answer = await asks.raw(tenant, "pools", b"{}")
            assert kind == PoolsAnswer.kind and b"secret" not in answer and str(tmp_path).encode() not in answer
        shown = [(pool.model, pool.revision) for pool in PoolsAnswer.decode(answer).pools]
        assert shown == [("Qwen/Qwen3-0.6B", "c1899de"), ("letters", None)]


async def test_adapter_and_its_chunks_make_the_blob(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await run_tasks(world)
        for version in (None, 2):
            adapter = (await asks.ask(AdapterAnswer, "acme", "adapter", task="a", version=version)).adapter
            assert adapter.version == version or (version is None and adapter.version == 3)
            packed = (await asks.ask(ChunkAnswer, "acme", "chunk", task="a", version=adapter.version, offset=0)).data
            assert (len(packed), hashlib.sha256(packed).hexdigest()) == (adapter.blob.size_bytes, adapter.blob.sha256)
            with tarfile.open(fileobj=BytesIO(packed)) as archive:
                content = archive.extractfile("content")
                assert content is not None and content.read() == f"a {adapter.version} adapter ".encode()
        assert await asks.refused("acme", "adapter", task="a", version=9) == ("unknown", "task a has no version 9; known are: 1 to 3")
        assert await asks.refused("acme", "adapter", task="b") == ("unknown", "no task 'b' of tenant 'acme'")
        assert await asks.refused("acme", "chunk", task="b", version=1, offset=0) == ("unknown", "no task 'b' of tenant 'acme'")
        size = adapter.blob.size_bytes
        reason = f"offset: the adapter has {size} bytes, none at {size}"
        assert await asks.refused("acme", "chunk", task="a", version=2, offset=size) == ("invalid", reason)
        await Blobs(bus).delete(adapter.blob.name)
        await world.rows(f"DELETE FROM stored_blobs WHERE name = '{adapter.blob.name}' RETURNING 1")
        code, reason = await asks.refused("acme", "adapter", task="a", version=2)
        assert code == "unknown" and reason.startswith("version 2 of task a is no longer stored; versions that are: 1, 3")


async def test_blob_of_several_store_chunks_is_read_at_any_offset(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    content = b"".join(number.to_bytes(8, "little") for number in range(1_200_000))  # 9.6 MB: three chunks in the store
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "content").write_bytes(content)
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("a")
        blob = await Blobs(bus).put_folder("a.v3.adapter", tmp_path / "large")
        stored = json.dumps(blob.model_dump())
        await world.rows(
            f"UPDATE steps SET adapter = jsonb_set(adapter, '{{blob}}', '{stored}') WHERE task = 'a' AND version = 2 RETURNING 1"
        )
        found = bytearray()
        while len(found) < blob.size_bytes:
            part = (await asks.ask(ChunkAnswer, "acme", "chunk", task="a", version=3, offset=len(found))).data
            assert len(part) == min(CHUNK_BYTES, blob.size_bytes - len(found))
            found += part
        assert hashlib.sha256(found).hexdigest() == blob.sha256
        across = 4 * 1024 * 1024 - 100
        part = (await asks.ask(ChunkAnswer, "acme", "chunk", task="a", version=3, offset=across)).data
        assert part == found[across : across + CHUNK_BYTES]
        assert max(map(len, asks.heard)) <= MAX_ANSWER_BYTES


async def test_pages_of_tasks_hold_each_once(bus: Bus, nats_url: str, database: Database) -> None:
    async with database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES ('acme'), ('globex')"))
        for tenant in ("acme", "globex"):
            await tx.connection.execute(text(TASK), {"tenant": tenant, "reason": 4000, "count": 450})
    async with answering(bus, database), asker(nats_url) as asks:
        for verb, answer in (("tasks", TasksAnswer), ("usage", UsageAnswer)):
            found, cursor, pages = list[str](), None, 0
            while cursor is not None or not pages:
                one = await asks.ask(answer, "acme", verb, cursor=cursor)
                found, cursor, pages = [*found, *(each.task for each in one.tasks)], one.cursor, pages + 1
            assert found == [f"acme-{number:04}" for number in range(1, 451)]
            assert pages >= 3
        assert max(map(len, asks.heard)) <= MAX_ANSWER_BYTES


async def test_large_events_are_paged_and_one_that_fits_no_page_says_so(bus: Bus, nats_url: str, database: Database) -> None:
    async with database.transaction() as tx:
        for size in (150_000, 150_000, 150_000, 600_000, 10):
            await tx.connection.execute(text(EVENT), {"size": size})
    async with answering(bus, database), asker(nats_url) as asks:
        after, pages = 0, list[list[dict[str, Any]]]()
        while after < 5:
            found = (await asks.ask(EventsAnswer, "acme", "events", task="a", after=after)).events
            pages.append([event.data for event in found])
            after = found[-1].number or 0
        assert [len(one) for one in pages] == [2, 3]
        assert pages[1][1] == {"omitted_bytes": 600_000 + len('{"text": ""}')}
        assert max(map(len, asks.heard)) <= MAX_ANSWER_BYTES


async def test_request_in_json_is_answered_in_json(bus: Bus, nats_url: str, database: Database) -> None:
    async with answering(bus, database), asker(nats_url) as asks:
        for body in (b"", b"{}", b'{"field_of_the_future": 1}'):
            assert json.loads((await asks.raw("acme", "tasks", body))[1]) == {"tasks": [], "cursor": None}
        assert msgpack.unpackb((await asks.raw("acme", "tasks", msgpack.packb({}) or b""))[1]) == {"tasks": [], "cursor": None}


async def test_deleted_task_is_unknown_and_its_last_event_is_found(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("a")
        await bus.publish(Outgoing(streams.job("delete", "acme"), ControlTask(task="a", tenant="acme"), "delete"))
        await eventually(lambda: world.rows("SELECT 1 FROM events WHERE event = 'deleted'"))
        assert await asks.refused("acme", "status", task="a") == ("unknown", "no task 'a' of tenant 'acme'")
        [event] = (await asks.ask(EventsAnswer, None, "events", task="a")).events
        assert (event.event, event.tenant) == ("deleted", "acme")
