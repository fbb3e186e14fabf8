"""A deleted tenant leaves its row, a receipt and what it consumed; another tenant notices nothing. Real NATS and PostgreSQL."""

import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import streams
from common.bus import Bus, Outgoing
from common.messages import DeleteTenant, Event, HttpPart, NewKey, PreviewTask, SetAccess
from scheduler_svc.base.database import Database
from tests.support.scheduler.canaries import CANARY, everything_published, in_streams, in_tables, plant_letter, planted, planting_world
from tests.support.scheduler.finished import LONG, clean
from tests.support.scheduler.stages import World, spec
from tests.support.services import service_process, without_settings
from tests.support.waiting import eventually

CONSUMED = "SELECT prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens FROM tenant_usage WHERE tenant = 'acme'"
OF_GLOBEX = (
    "SELECT id, state, version, adapter::text FROM tasks WHERE tenant = 'globex' ORDER BY id",
    "SELECT name, bytes FROM stored_blobs WHERE task = 'other' ORDER BY name",
)
PACKAGES = f"""
INSERT INTO packages (tenant, digest, size_bytes, state, objection)
SELECT tenant, repeat(digit, 64), size, 'refused', objection
FROM (VALUES ('acme', 'a', 5, '{CANARY}'), ('acme', 'b', 7, '{CANARY}'), ('globex', 'a', 11, 'no wheel')) p (tenant, digit, size, objection)
RETURNING digest
"""
POINTS = (1, 2, 3, 4, 5, 5, 6, 7)
"""Visits to the crash point at which each start dies: the fourth and the fifth delete a task, so that later starts pass fewer."""


async def ask(world: World, request: str, tenant: str = "acme", body_tenant: str | None = None) -> None:
    message = DeleteTenant(tenant=body_tenant or tenant, request=request)
    await world.bus.publish(Outgoing(streams.job("delete-tenant", tenant), message, f"delete-tenant:{request}"))


async def answer(world: World, request: str, tenant: str = "acme") -> dict[str, Any]:
    """Data of the answer."""
    async for delivery in world.bus.streams.follow(streams.EVENTS, streams.events(tenant, "none")):
        event = delivery.read(Event)
        if event.event == "tenant-deleted" and event.data["request"] == request:
            return event.data
    raise AssertionError(request)


async def run_other(world: World) -> None:
    """A task of globex, whose superseded blobs are deleted a moment after it has ended."""
    await world.run("other", spec(tenant="globex"))
    await clean(world)


async def plant(world: World) -> None:
    """Two tasks of acme, one that runs, and what is about none of its tasks; one of globex that has ended, and one that runs."""
    await run_other(world)
    await world.submit("live", spec(tenant="globex", limits=LONG))
    await world.run("a", planted())
    await world.run("b", planted(start={"task": "a"}, steps=50), until="step")
    await plant_letter(world, "a")
    await world.rows(PACKAGES)
    preview = PreviewTask(tenant="acme", request="r", spec=planted())
    await world.bus.publish(Outgoing(streams.job("preview", "acme"), preview, "preview"))
    await world.bus.publish_raw(streams.job("submit", "acme"), CANARY.encode(), "garbage", {})
    await world.rows_become("SELECT count(*) FROM dead_letters WHERE subject = 'jobs.submit.acme'", [(1,)])
    for letter in "AB":
        http = HttpPart(digest="b" * 64, token=f"a.{CANARY}.b") if letter == "B" else None
        key = NewKey(key="U" + letter * 55, name=CANARY, role="owner", http=http)
        access = SetAccess(tenant="acme", request="r", account="A" + "B" * 55, add=key, beside=True)
        await world.bus.publish(Outgoing(streams.job("set-access", "acme"), access, f"key:{letter}"))
    await world.rows_become("SELECT count(*) FROM keys", [(2,)])
    await everything_published(world)


async def gone_from_streams(folder: Path) -> None:
    """Wait until no stream's file has the canary: NATS writes some of them a little later."""
    with suppress(TimeoutError):
        await eventually(lambda: not in_streams(folder), 60)
    assert in_streams(folder) == set()


async def test_deleted_tenant_leaves_what_it_consumed_and_no_content(
    bus: Bus, database_url: str, nats_folder: Path, tmp_path: Path
) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("other", "live")) as world:
        await plant(world)
        assert {"events", "dead_letters", "keys"} <= await in_tables(world)
        others = [await world.rows(query) for query in OF_GLOBEX]
        await ask(world, "one")
        receipt = await answer(world, "one")
        assert (receipt["tasks"], receipt["cancelled"], receipt["dead_letters"], receipt["keys"]) == (2, 1, 2, 2)
        assert (receipt["packages"], receipt["package_bytes"]) == (2, 5 + 7)
        assert await world.rows("SELECT tenant, verb FROM audit WHERE via = 'scheduler' ORDER BY id") == [
            ("acme", "revoke-key"),
            ("acme", "revoke-key"),
            ("acme", "tenant-deleted"),
        ]
        assert all(
            receipt[name] > 0 for name in ("groups", "trajectories", "steps", "evaluations", "events", "blobs", "blob_bytes", "messages")
        )
        assert await in_tables(world) == set()
        await gone_from_streams(nats_folder)
        assert await world.rows("SELECT id FROM tasks WHERE tenant = 'acme'") == []
        assert await bus.streams.subjects(streams.EVENTS, "events.acme.>") == {"events.acme.none": 1}
        [consumed] = await world.rows(CONSUMED)
        assert sum(consumed) > 0
        assert [await world.rows(query) for query in OF_GLOBEX] == others
        await clean(world)

        await ask(world, "again")
        assert "'acme' was deleted already, at 20" in str((await answer(world, "again"))["reasons"])
        assert (await world.run("c", spec(), until="rejected"))["reasons"] == ["tenant: 'acme' is deleted"]
        assert await world.rows(CONSUMED) == [consumed]
        await world.run("next", spec(tenant="globex"))


async def test_foreign_or_unknown_tenants_are_not_deleted(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=()) as world:
        await run_other(world)
        others = [await world.rows(query) for query in OF_GLOBEX]
        await ask(world, "foreign", tenant="acme", body_tenant="globex")  # on another tenant's subject
        await ask(world, "unknown")
        assert (await answer(world, "unknown"))["reasons"] == ["tenant: no tenant 'acme'"]
        await world.rows_become("SELECT subject FROM dead_letters", [("jobs.delete-tenant.acme",)])
        assert [await world.rows(query) for query in OF_GLOBEX] == others
        assert await world.rows("SELECT id FROM tenants WHERE deleted_by IS NOT NULL") == []


async def test_deletion_that_is_killed_at_each_point_ends_as_if_undisturbed(
    bus: Bus, database_url: str, nats_folder: Path, nats_url: str, tmp_path: Path
) -> None:
    async with planting_world(bus, database_url, tmp_path, clean=("other", "live")) as world:
        await plant(world)
        others = [await world.rows(query) for query in OF_GLOBEX]
    async with await Database.connect(database_url) as database:
        stopped = replace(world, database=database)
        consumed = await stopped.rows("SELECT sum(tokens) FROM ledger WHERE task = 'a' AND kind <> 'evaluation'")
        await ask(stopped, "one")
        settings = without_settings() | {"MARLAAS_NATS_URL": nats_url, "MARLAAS_SCHEDULER_DATABASE_URL": database_url}
        for point in POINTS:
            armed = settings | {"MARLAAS_CRASH_POINT": f"tenant_deletion:{point}", "MARLAAS_HTTP_PORT": "0"}
            with service_process("scheduler_svc", armed, tmp_path / "log") as scheduler:
                await eventually(lambda scheduler=scheduler: scheduler.poll() is not None, 120)
                assert scheduler.returncode == -signal.SIGKILL, point
        with service_process("scheduler_svc", settings | {"MARLAAS_HTTP_PORT": "0"}, tmp_path / "log"):
            receipt = await answer(stopped, "one")
            await everything_published(stopped)
            await gone_from_streams(nats_folder)  # what an earlier start had not published is erased after it is
        assert (receipt["tasks"], receipt["cancelled"], receipt["dead_letters"], receipt["keys"]) == (2, 1, 2, 2)
        assert (receipt["packages"], receipt["package_bytes"]) == (2, 5 + 7)
        assert await stopped.rows("SELECT count(*) FROM tenants WHERE deleted_at IS NOT NULL") == [(1,)]
        assert await stopped.rows("SELECT prompt_tokens + sampled_tokens + trained_tokens FROM deleted_tasks WHERE id = 'a'") == consumed
        assert await in_tables(stopped) == set()
        assert [await stopped.rows(query) for query in OF_GLOBEX] == others
    assert CANARY not in (tmp_path / "log").read_text()
