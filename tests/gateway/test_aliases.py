"""Aliases by HTTP, before a real scheduler, PostgreSQL and NATS: what they name, hold and are refused for."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import DeleteTenant, KnownAlias, SetAlias, TrainBatch
from common.messages.tenancy.aliases import MAX_ALIASES
from common.streams import ALIASES_BUCKET
from marlaas.client import Client, ClientError
from tests.gateway.openai.clients import openai
from tests.support.gateway.deltas import Part, Source, deltas
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.finished import StagesWithBlobs
from tests.support.scheduler.retention import at_day, kinds
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.scheduler.tenant_settings import set_tenant
from tests.support.waiting import eventually_equals

ACME = {"tenant": "acme"}


@dataclass
class Gated(StagesWithBlobs):
    """Stages whose trainer waits at version 3 of the task `gated`."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def train(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        batch = delivery.read(TrainBatch)
        if batch.task == "gated" and batch.version == 3:
            await self.gate.wait()
        async for out in super().train(delivery):
            yield out


@pytest.fixture
def made(bus: Bus, tmp_path: Path) -> Gated:
    return Gated(blobs=Blobs(bus), folder=tmp_path / "made")


@pytest.fixture
async def world(bus: Bus, database_url: str, made: Gated) -> AsyncGenerator[World]:
    async with running_world(bus, database_url, made) as world:
        yield world


async def put(door: httpx.AsyncClient, name: str, task: str = "a", version: Any = "latest", **headers: str) -> httpx.Response:
    shown = {header.replace("_", "-"): value for header, value in headers.items()}
    return await door.put(f"/v1/aliases/{name}", params=ACME, json={"task": task, "version": version}, headers=shown)


async def stored(world: World, task: str) -> set[int]:
    """Versions of the task whose adapters are stored."""
    names = [blob.name.split(".") for blob in await Blobs(world.bus).listed()]
    return {int(version[1:]) for of, version, kind in names if of == task and kind.startswith("adapter")}


async def sweep(world: World) -> None:
    await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]


async def told(world: World) -> dict[str, str]:
    """What rollout replicas are told: key → version."""
    found = await world.bus.kv.values(ALIASES_BUCKET, KnownAlias)
    return {alias.key: f"{alias.adapter.task}@{alias.adapter.version}" for alias in found}


async def test_alias_is_set_moved_listed_and_deleted(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    first = await put(door, "prod", version=2)
    moved = await put(door, "prod", If_Match=first.headers["etag"])
    stale = await put(door, "prod", version=1, If_Match=first.headers["etag"])
    taken = await put(door, "prod", version=1, If_None_Match="*")
    read = await door.get("/v1/aliases/prod", params=ACME)
    foreign = await door.get("/v1/aliases/prod", params={"tenant": "globex"})

    assert (first.status_code, first.json()["version"], first.headers["etag"]) == (200, 2, '"a@2"')
    assert (moved.json()["version"], moved.json()["pool"], moved.json()["tenant"]) == (3, "tiny", "acme")
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert (taken.status_code, taken.json()["detail"]) == (412, "alias: 'prod' names a@3")
    assert read.json() == moved.json()
    assert foreign.status_code == 404
    assert foreign.json() == (await door.get("/v1/aliases/none", params=ACME)).json()
    await eventually_equals(lambda: told(world), {"acme.prod": "a@3"})
    listed = (await door.get("/v1/aliases", params=ACME)).json()["aliases"]
    assert listed == [moved.json()]
    assert (await door.delete("/v1/aliases/prod", params=ACME, headers={"If-Match": '"a@2"'})).status_code == 412
    assert (await door.delete("/v1/aliases/prod", params=ACME)).json() == moved.json()
    assert (await door.delete("/v1/aliases/prod", params=ACME)).status_code == 404
    await eventually_equals(lambda: told(world), {})
    verbs = await world.rows("SELECT verb, target, outcome FROM audit WHERE verb LIKE '%-alias' AND outcome = 'accepted' ORDER BY id")
    assert [tuple(row) for row in verbs] == [
        ("set-alias", "a.v2", "accepted"), ("set-alias", "a.v3", "accepted"), ("delete-alias", "a.v3", "accepted"),
    ]  # fmt: skip


async def test_what_cannot_be_an_alias(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    await world.run("theirs", spec(tenant="globex"))
    pool, at, dots, long = [await put(door, name) for name in ("tiny", "a@1", "x..y", "x" * 64)]
    foreign, absent = await put(door, "prod", "theirs"), await put(door, "prod", "never")
    future = await put(door, "prod", version=9)
    wrong = [await put(door, "prod", version=version) for version in (0, "newest", 1.5, True, -1, None)]
    etag = await put(door, "prod", If_Match="a@1")

    assert [one.status_code for one in (pool, at, dots, long)] == [400] * 4
    assert pool.json()["errors"] == [{"field": "name", "reason": "'tiny' is a pool; choose another name"}]
    assert [one.status_code for one in (foreign, absent, future)] == [404] * 3
    assert foreign.text.replace("theirs", "never") == absent.text
    assert {one.status_code for one in (*wrong, etag)} == {400}
    assert (await door.put("/v1/aliases/prod", json={"task": "a"})).json()["code"] == "tenant_required"
    assert (await door.put("/v1/aliases/prod", params=ACME, json={"task": "a", "extra": 1})).status_code == 400
    assert (await door.get("/v1/aliases", params=ACME)).json() == {"aliases": [], "cursor": None}


async def test_one_tenant_has_so_many_aliases(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    await world.execute(
        "INSERT INTO aliases (tenant, name, task, version, pool, adapter, request)"
        f" SELECT 'acme', 'n' || i, 'a', 3, 'tiny', adapter, 'x' FROM steps, generate_series(1, {MAX_ALIASES}) i"
        " WHERE task = 'a' AND version = 2"
    )
    assert (await put(door, "more")).status_code == 400
    assert (await put(door, "n1", version=2)).status_code == 200
    assert len((await door.get("/v1/aliases", params=ACME)).json()["aliases"]) == MAX_ALIASES


async def test_of_many_changes_at_once_one_takes_the_place(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    made = await asyncio.gather(*(put(door, "prod", version=version, If_None_Match="*") for version in (1, 2, 3, 1, 2, 3)))
    assert sorted(one.status_code for one in made) == [200, 412, 412, 412, 412, 412]


async def test_redelivered_job_resolves_nothing_again(world: World, door: httpx.AsyncClient, made: Gated) -> None:
    """`latest` is what it was when the job was first handled."""
    await world.submit("gated", spec(steps=6))
    await world.rows_become("SELECT version FROM tasks WHERE id = 'gated'", [(3,)])
    job = SetAlias(tenant="acme", request="r1", name="prod", task="gated")
    await world.bus.publish(Outgoing(streams.job("set-alias", "acme"), job, "one"))
    await eventually_equals(lambda: told(world), {"acme.prod": "gated@3"})
    made.gate.set()
    await world.event("gated", "finished")
    await world.bus.publish(Outgoing(streams.job("set-alias", "acme"), job, "two"))
    await world.rows_become("SELECT count(*) FROM events WHERE event = 'alias'", [(2,)])
    assert (await door.get("/v1/aliases/prod", params=ACME)).json()["version"] == 3


async def test_alias_holds_its_version_while_the_task_trains(world: World, door: httpx.AsyncClient, made: Gated) -> None:
    await world.submit("gated", spec(steps=9))
    await world.rows_become("SELECT version FROM tasks WHERE id = 'gated'", [(3,)])
    assert (await put(door, "prod", "gated", 1)).status_code == 200
    made.gate.set()
    await world.event("gated", "finished")
    await sweep(world)
    assert await stored(world, "gated") == {1, 7, 8, 9}
    gone = await put(door, "other", "gated", 2)
    assert (gone.status_code, "is not kept" in gone.json()["detail"]) == (404, True)
    assert (await put(door, "other", "gated", 1)).status_code == 200, "another alias keeps it"
    for name in ("prod", "other"):
        await door.delete(f"/v1/aliases/{name}", params=ACME)
    await sweep(world)
    assert await stored(world, "gated") == {7, 8, 9}


async def test_alias_outlives_the_tenants_days_and_bars_deletion(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    await set_tenant(world, "one", adapters_days=2, checkpoints_days=2, tasks_days=4)
    await put(door, "prod", version=2)
    refused = await door.delete("/v1/tasks/a")
    await at_day(world, 1.2)
    await at_day(world, 2.3)
    assert await stored(world, "a") == {2}
    assert await kinds(world, "a") == {"adapter"}
    await at_day(world, 3.2)
    await at_day(world, 4.3)
    assert await world.rows("SELECT id FROM tasks") == [("a",)]
    assert (await door.get("/v1/models/prod", params=ACME)).json()["id"] == "a@2"
    await door.delete("/v1/aliases/prod", params=ACME)
    await world.scheduler.apply_retention()
    await world.event("a", "deleted")

    assert refused.status_code == 409
    assert "'prod'" in refused.text
    assert await stored(world, "a") == set()


async def test_tenant_is_deleted_with_its_aliases(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a")
    await put(door, "prod")
    await eventually_equals(lambda: told(world), {"acme.prod": "a@3"})
    await world.bus.publish(Outgoing(streams.job("delete-tenant", "acme"), DeleteTenant(tenant="acme", request="r"), "gone"))
    await world.rows_become("SELECT count(*) FROM tenants WHERE deleted_at IS NOT NULL", [(1,)])
    assert await world.rows("SELECT count(*) FROM aliases") == [(0,)]
    await eventually_equals(lambda: told(world), {})
    assert (await put(door, "prod")).status_code in (400, 404)


async def test_requests_name_an_alias_as_their_model(world: World, nats_url: str) -> None:
    await world.run("a")
    await world.run("theirs", spec(tenant="globex"))
    source = Source(lambda _: deltas([Part("x")]))
    async with gateway(world.bus, nats_url, sampler=source) as address, client(address) as door, openai(address) as mine:
        await put(door, "prod.v1", version=2)
        await door.put("/v1/aliases/prod.v1", params={"tenant": "globex"}, json={"task": "theirs"})
        chat = await mine.chat.completions.create(model="prod.v1", messages=[{"role": "user", "content": "x"}])
        text = await mine.completions.create(model="prod.v1", prompt="x")
        answer = await mine.responses.create(model="prod.v1", input="x")
        await put(door, "prod.v1", version=3)
        moved = await mine.chat.completions.create(model="prod.v1", messages=[{"role": "user", "content": "x"}])
        listed = {model.id: model.owned_by async for model in mine.models.list()}
        job = await mine.fine_tuning.jobs.create(
            model="prod.v1", training_file="env:toy", method={"type": "reinforcement"}, extra_body={"marlaas": {"steps": 1}}
        )
        spec_of_job = (await door.get(f"/v1/tasks/{job.id}/spec")).json()["spec"]
        async with openai(address, tenant=None) as everybody:
            with pytest.raises(Exception, match="several tenants have an alias"):
                await everybody.models.retrieve("prod.v1")
        absent = await door.get("/v1/models/prod.v2", params=ACME)

    assert {chat.model, text.model, answer.model} == {"a@2"}
    assert moved.model == "a@3"
    assert listed["prod.v1"] == "acme"
    assert (spec_of_job["start"]["task"], spec_of_job["start"]["version"]) == ("a", 3)
    assert absent.status_code == 404


async def test_alias_goes_before_a_pool_that_came_later(world: World, nats_url: str) -> None:
    """What a tenant has named must not become another model."""
    await world.run("a")
    async with gateway(world.bus, nats_url) as address, client(address) as door:
        await put(door, "later", version=2)
        await world.execute("UPDATE aliases SET name = 'tiny'")
        assert (await door.get("/v1/models/tiny", params=ACME)).json()["id"] == "a@2"
        assert (await door.get("/v1/models/tiny", params={"tenant": "globex"})).json()["id"] == "tiny"
        models = [one["id"] for one in (await door.get("/v1/models", params=ACME)).json()["data"]]
    assert models.count("tiny") == 1


async def test_client_sets_lists_and_deletes(world: World, nats_url: str) -> None:
    await world.run("a")
    async with Client.connect(nats_url, tenant="acme") as mine:
        found = await mine.aliases.set("prod", "a", "best")
        assert [one.name for one in await mine.aliases.all()] == ["prod"]
        with pytest.raises(ClientError, match="'prod' names a@"):
            await mine.aliases.set("prod", "a", 1, expected="a@1" if found.version != 1 else "a@2")
        with pytest.raises(ClientError, match="no task 'b'"):
            await mine.aliases.set("prod", "b")
        assert (await mine.aliases.delete("prod")).model == found.model
    async with Client.connect(nats_url) as everybody:
        with pytest.raises(ClientError, match="say whose alias"):
            await everybody.aliases.set("prod", "a")
