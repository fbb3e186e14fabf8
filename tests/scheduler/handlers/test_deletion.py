"""Delete and prune against real PostgreSQL and NATS: what they delete, keep and reject."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.messages import ControlTask, Event, PruneTasks, SubmitTask, TaskStatus
from tests.support.scheduler.finished import clean, settled, stages
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.waiting import eventually

CONSUMED = "prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens"
NOTHING_TRAINED = {"task_count": 0, "task_bytes": 0, "blobs": 0, "blob_bytes": 0}


@asynccontextmanager
async def world_of(bus: Bus, database_url: str, folder: Path, waits: str = "") -> AsyncIterator[World]:
    async with running_world(bus, database_url, stages(bus, folder, withheld=lambda group, member: group.task == waits)) as world:
        yield world


async def finish(world: World, task: str, **changes: Any) -> None:
    await world.run(task, spec(**changes))
    await settled(world)


async def ask(world: World, verb: str, task: str, tenant: str = "acme", body_tenant: str | None = None) -> None:
    message = ControlTask(task=task, tenant=body_tenant or tenant)
    await world.bus.publish(Outgoing(f"jobs.{verb}.{tenant}", message, f"{verb}:{task}:{tenant}:{body_tenant}"))


async def refusal(world: World, task: str, tenant: str = "acme") -> str:
    data = await world.event(task, "rejected", tenant)
    assert data["verb"] == "delete"
    return str(data["reasons"])


async def sweep(world: World) -> None:
    """Delete what steps and evaluations superseded."""
    await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]


async def names(world: World) -> set[str]:
    return {blob.name.partition("-")[0] for blob in await Blobs(world.bus).listed()}


async def pruned(world: World, request: str, **options: Any) -> dict[str, Any]:
    """Prune; returns the data of the answer."""
    await world.bus.publish(
        Outgoing(streams.job("prune", "acme"), PruneTasks(tenant="acme", request=request, **options), f"prune:{request}")
    )
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events("acme", "none")):
        event = delivery.read(Event)
        if event.data.get("request") == request:
            return event.data
    raise AssertionError(request)


async def test_deleted_task_leaves_only_its_usage(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_of(bus, database_url, tmp_path) as world:
        await finish(world, "a", evaluation={"every": 2, "prompts": 1}, keep={"batches": 3})
        await finish(world, "b")
        used = await world.rows(f"SELECT {CONSUMED} FROM tenant_usage WHERE tenant = 'acme'")
        await sweep(world)
        stored = sum(blob.size_bytes for blob in await Blobs(bus).listed() if blob.name.startswith("a."))
        assert await world.rows("SELECT bytes FROM task_storage WHERE task = 'a'") == [(stored,)]
        await ask(world, "delete", "a")
        assert (await world.event("a", "deleted"))["bytes"] == stored > 0
        assert {name.partition(".")[0] for name in await names(world)} == {"b"}
        assert not await bus.streams.subjects(streams.WEIGHTS, "weight-updated.*.a")
        assert await bus.streams.subjects(streams.EVENTS, "events.*.a") == {"events.acme.a": 1}
        assert [status.task for status in await bus.kv.values(streams.TASKS_BUCKET, TaskStatus)] == ["b"]
        assert await world.rows("SELECT task FROM task_storage") == [("b",)]
        for table in ("groups", "trajectories", "steps", "ledger", "evaluations"):
            assert await world.rows(f"SELECT DISTINCT task FROM {table} WHERE task = 'a'") == []
        assert await world.rows(f"SELECT {CONSUMED} FROM tenant_usage WHERE tenant = 'acme'") == used
        await clean(world)


async def test_impossible_deletions_are_rejected_with_one_sentence(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_of(bus, database_url, tmp_path, waits="live") as world:
        await finish(world, "a")
        await world.run("live", until="accepted")
        await ask(world, "delete", "live")
        assert "'live' is running; end it first with `marlaas cancel live`, then delete it" in await refusal(world, "live")
        await ask(world, "delete", "unknown")
        assert "no task 'unknown' of tenant 'acme'" in await refusal(world, "unknown")
        await ask(world, "delete", "a", tenant="globex")
        assert "no task 'a' of tenant 'globex'" in await refusal(world, "a", tenant="globex")
        await ask(world, "delete", "a", tenant="globex", body_tenant="acme")  # on another tenant's subject
        await eventually(lambda: world.rows("SELECT reason FROM dead_letters"))
        assert await world.rows("SELECT reason FROM dead_letters") == [("the subject names tenant 'globex', the message 'acme'",)]
        assert await world.rows("SELECT id FROM deleted_tasks") == []
        await world.control("delete", "a", until="deleted")
        await world.bus.publish(Outgoing(streams.job("delete", "acme"), ControlTask(task="a", tenant="acme"), "repeated"))
        assert "'a' was deleted already, at 20" in await refusal(world, "a")
        await world.bus.publish(
            Outgoing(streams.job("submit", "acme"), SubmitTask(task="a", tenant="acme", spec=spec(steps=7)), "under its id")
        )

        async def is_refused() -> bool:
            rejections = await world.rows("SELECT data ->> 'reasons' FROM events WHERE task = 'a' AND event = 'rejected'")
            return any("was that of a task that is deleted; make a new one" in reasons for (reasons,) in rejections)

        await eventually(is_refused)
        assert await world.rows("SELECT id FROM tasks ORDER BY id") == [("live",)]


async def test_adapter_that_another_task_started_from_outlives_its_own_task(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_of(bus, database_url, tmp_path, waits="heir") as world:
        await finish(world, "a")
        await world.run("heir", spec(start={"task": "a"}), until="accepted")
        await world.control("delete", "a", until="deleted")
        assert await names(world) == {"a.v3.adapter"}
        await clean(world)
        await world.control("cancel", "heir", until="cancelled")
        await world.control("delete", "heir", until="deleted")
        await sweep(world)
        assert await names(world) == set()
        await clean(world)


async def test_prune_deletes_what_its_dry_run_lists(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_of(bus, database_url, tmp_path) as world:
        for task, tenant in (("old", "acme"), ("new", "acme"), ("other", "globex")):
            await finish(world, task, tenant=tenant)
        await clean(world)
        assert (await pruned(world, "nothing", dry_run=True)).items() >= NOTHING_TRAINED.items()
        await world.execute("UPDATE tasks SET ended_at = now() - interval '1 day' WHERE id IN ('old', 'other')")
        repeated = stages(bus, tmp_path)
        await repeated.store("new", 3, "of a step that was trained twice")
        sizes = {blob.name: blob.size_bytes for blob in await Blobs(bus).listed()}
        of_old = sum(size for name, size in sizes.items() if name.startswith("old."))
        wanted = {"tasks": ["old"], "task_count": 1, "task_bytes": of_old, "blobs": 2, "blob_bytes": 20480}
        assert (await pruned(world, "dry", ended_before_s=3600, dry_run=True)).items() >= wanted.items()
        assert {blob.name for blob in await Blobs(bus).listed()} == set(sizes)
        assert (await pruned(world, "wet", ended_before_s=3600)).items() >= wanted.items()
        assert {name.partition(".")[0] for name in await names(world)} == {"new", "other"}
        assert await world.rows("SELECT id FROM tasks ORDER BY id") == [("new",), ("other",)]
        await clean(world)
