"""What the SDK needs of a gateway: ids that it chooses, events of every task, and the events of a task that is deleted."""

import asyncio
import json

import httpx
import pytest

from common.spec import marked
from tests.gateway.behind_keys import behind_keys
from tests.gateway.event_streams import STREAM, Stream
from tests.support.gateway.serving import client
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World, spec


async def test_put_is_one_task_however_often_it_comes(world: World, door: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(door.put("/v1/tasks/slow-mine", json=spec()) for _ in range(5)))
    assert {answer.status_code for answer in answers} <= {200, 201}
    assert {answer.json()["task"] for answer in answers} == {"slow-mine"}
    assert await world.rows("SELECT id FROM tasks") == [("slow-mine",)]
    again = await door.put("/v1/tasks/slow-mine", json=spec())
    assert (again.status_code, again.json()["tenant"]) == (200, "acme")
    other = await door.put("/v1/tasks/slow-mine", json=spec(steps=9))
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")


@pytest.mark.parametrize("task", ["My Task", "a" * 64, "-a", "a.b"])
async def test_id_that_no_task_can_have_is_refused(task: str, door: httpx.AsyncClient) -> None:
    answer = await door.put(f"/v1/tasks/{task}", json=spec())
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "task")


async def test_rejection_under_an_id_has_every_reason(world: World, door: httpx.AsyncClient) -> None:
    refused = await door.put("/v1/tasks/mine", json=spec(pool="huge"))
    assert refused.status_code == 400
    assert refused.json()["errors"] == [{"field": "pool", "reason": "no pool 'huge' here; offered: tiny"}]


async def test_events_of_every_task_are_those_of_the_tenant(keyed: Keyed, keyed_world: World) -> None:
    async with (
        behind_keys(keyed, keyed_world) as (address, keys),
        client(address, keys.valid["reader"]) as reader,
        client(address, keys.valid["foreign"]) as foreign,
        client(address, keys.valid["member"]) as member,
        reader.stream("GET", "/v1/events", headers=STREAM) as ours,
        foreign.stream("GET", "/v1/events", headers=STREAM) as theirs,
    ):
        events, others = aiter(Stream(ours)), aiter(Stream(theirs))
        assert (await anext(events))["event"] == (await anext(others))["event"] == "listening"
        await member.post("/v1/tasks/slow-1/pause")
        paused = await anext(events)
        data = json.loads(paused["data"])
        assert (paused["event"], data["task"], data["tenant"]) == ("paused", "slow-1", "acme")
        assert data["number"] > 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(others)


async def test_id_of_another_tenant_is_refused_by_its_form(keyed: Keyed, keyed_world: World) -> None:
    async with (
        behind_keys(keyed, keyed_world) as (address, keys),
        client(address, keys.valid["foreign"]) as foreign,
        client(address, keys.valid["member"]) as member,
    ):
        theirs, absent, own = marked("slow-1", "acme"), marked("absent", "acme"), marked("slow-1", "globex")
        made = await member.put(f"/v1/tasks/{theirs}", json=spec())
        once = await member.post("/v1/tasks", json=spec(), headers={"Idempotency-Key": "x"})
        again = await foreign.post("/v1/tasks", json=spec(tenant="globex"), headers={"Idempotency-Key": "x"})
        assert [answer.status_code for answer in (made, once, again)] == [201, 201, 201]
        assert once.json()["task"] != again.json()["task"]
        refused = [await foreign.put(f"/v1/tasks/{task}", json=spec(tenant="globex")) for task in (theirs, absent)]
        assert [answer.status_code for answer in refused] == [400, 400]
        assert len({answer.text.replace(theirs, absent).replace(answer.headers["x-request-id"], "") for answer in refused}) == 1
        assert (await foreign.put(f"/v1/tasks/{own}", json=spec(tenant="globex"))).status_code == 201


async def test_deleted_task_still_has_its_events(world: World, door: httpx.AsyncClient) -> None:
    await door.put("/v1/tasks/slow-mine", json=spec())
    await door.post("/v1/tasks/slow-mine/cancel")
    await world.event("slow-mine", "cancelled")
    assert (await door.delete("/v1/tasks/slow-mine")).status_code == 200
    found = (await door.get("/v1/tasks/slow-mine/events")).json()["events"]
    assert found[-1]["event"] == "deleted"
    assert (await door.get("/v1/tasks/never/events")).status_code == 404
    assert (await door.get("/v1/tasks/slow-mine")).status_code == 404
