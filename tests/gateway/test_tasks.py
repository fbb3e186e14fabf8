"""Tasks by HTTP: submission, state and control."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import DeadLetter
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.finished import stages
from tests.support.scheduler.stages import World, running_world, scored, spec
from tests.support.waiting import eventually_equals

TOML = """
name = "sums"
tenant = "acme"
pool = "tiny"
steps = 1
environment = { name = "toy" }
algorithm = { group_size = 2, groups_per_step = 2, max_staleness = 1 }
"""


async def ended(door: httpx.AsyncClient, task: str) -> dict[str, Any]:
    while (found := (await door.get(f"/v1/tasks/{task}")).json())["state"] in ("submitted", "running"):
        await asyncio.sleep(0.05)
    return found


async def test_task_is_submitted_runs_and_is_deleted(door: httpx.AsyncClient) -> None:
    answer = await door.post("/v1/tasks", json=spec())
    task = answer.json()["task"]
    detail = await ended(door, task)
    accepted = (await door.get(f"/v1/tasks/{task}/spec")).json()
    waits = (await door.get(f"/v1/tasks/{task}/why")).json()
    gone = await door.delete(f"/v1/tasks/{task}")

    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/tasks/{task}"
    assert (detail["state"], detail["version"]) == ("finished", 3)
    assert (accepted["task"], accepted["spec"]["algorithm"]["group_size"]) == (task, 2)
    assert (waits["task"], waits["cause"]) == (task, None)
    assert gone.status_code == 200
    assert (await door.get(f"/v1/tasks/{task}")).status_code == 404


async def test_task_file_may_be_toml(door: httpx.AsyncClient) -> None:
    answer = await door.post("/v1/tasks", content=TOML, headers={"content-type": "application/toml"})
    wrong = await door.post("/v1/tasks", content=f"{TOML}\nday = 2020-01-01", headers={"content-type": "application/toml"})

    assert answer.status_code == 201
    assert wrong.status_code == 400


async def test_rejection_names_every_field(door: httpx.AsyncClient) -> None:
    answer = await door.post("/v1/tasks", json=spec(steps=0, algorithm={"group_size": "many", "group_sise": 1}, pool="none"))

    assert answer.status_code == 400
    assert {error["field"]: error["reason"] for error in answer.json()["errors"]} == {
        "steps": "must be 1 or more, not 0",
        "algorithm.group_size": "must be a whole number, not 'many'",
        "algorithm.group_sise": "no such field; did you mean 'group_size'?",
        "pool": "no pool 'none' here; offered: tiny",
    }


@pytest.mark.parametrize(
    ("path", "field", "reason"),
    [
        ("/v1/tasks?limit=0", "limit", "must be 1 or more, not '0'"),
        ("/v1/tasks?limit=x", "limit", "must be a whole number, not 'x'"),
        ("/v1/tasks?sort=cost", "sort", "must be "),
        ("/v1/tasks?cursor=%25", "cursor", "must be the cursor that the page before gave, not '%'"),
        ("/v1/tasks?pool=A%20B", "pool", "must be small letters, digits and hyphens, 40 at most"),
    ],
)
async def test_wrong_parameter_is_named_with_what_is_accepted(door: httpx.AsyncClient, path: str, field: str, reason: str) -> None:
    answer = await door.get(path)

    [error] = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (400, field)
    assert error["reason"].startswith(reason)


async def test_wrong_body_is_named_with_what_is_accepted(door: httpx.AsyncClient) -> None:
    alias = await door.put("/v1/aliases/prod", json={"task": "A b", "version": "last", "more": 1})
    chat = await door.post("/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": 7}]})

    assert {error["field"]: error["reason"] for error in alias.json()["errors"]} == {
        "task": "must be small letters, digits and hyphens, 63 at most, a letter or digit first and last, not 'A b'",
        "version": "must be a whole number or 'latest' or 'best', not 'last'",
        "more": "no such field",
    }
    assert chat.json()["error"]["message"] == "messages[0].content: must be a text, not 7"


async def test_rejection_by_the_scheduler_names_its_reasons(door: httpx.AsyncClient) -> None:
    answer = await door.post("/v1/tasks", json=spec(pool="none"))

    assert answer.status_code == 400
    assert "pool" in answer.json()["detail"]


async def test_dry_run_submits_nothing(door: httpx.AsyncClient) -> None:
    good = await door.post("/v1/tasks", params={"dry_run": True}, json=spec())
    bad = await door.post("/v1/tasks", params={"dry_run": True}, json=spec(pool="none"))

    assert (good.status_code, good.json()["data"]["reasons"]) == (200, [])
    assert good.json()["data"]["spec"]["steps"] == 3
    assert bad.json()["data"]["reasons"]
    assert (await door.get("/v1/tasks")).json()["tasks"] == []


async def test_admin_names_the_tenant_in_the_address_or_in_the_file(door: httpx.AsyncClient) -> None:
    nameless = {name: value for name, value in spec().items() if name != "tenant"}

    answer = await door.post("/v1/tasks", params={"tenant": "globex"}, json=nameless)
    two = await door.post("/v1/tasks", params={"tenant": "globex"}, json=spec(tenant="acme"))
    none = await door.post("/v1/tasks", json=nameless)

    assert answer.json()["tenant"] == "globex"
    assert two.status_code == 403
    assert "the task file says tenant 'acme', and the key is of tenant 'globex'" in two.json()["detail"]
    assert [error["field"] for error in none.json()["errors"]] == ["tenant"]


async def test_idempotency_key_makes_one_task(door: httpx.AsyncClient) -> None:
    headers = {"Idempotency-Key": "k-1"}

    both = await asyncio.gather(*(door.post("/v1/tasks", json=spec(), headers=headers) for _ in range(2)))
    again = await door.post("/v1/tasks", json=dict(reversed(spec().items())), headers=headers)
    other_body = await door.post("/v1/tasks", json=spec(steps=4), headers=headers)
    other_tenant = await door.post("/v1/tasks", json=spec(tenant="globex"), headers=headers)

    assert len({answer.json()["task"] for answer in (*both, again)}) == 1
    assert {answer.status_code for answer in (*both, again)} <= {200, 201}
    assert other_body.status_code == 409
    assert other_tenant.status_code == 201
    assert len((await door.get("/v1/tasks")).json()["tasks"]) == 2


async def test_equal_submissions_without_a_key_are_two_tasks(door: httpx.AsyncClient) -> None:
    first, second = [(await door.post("/v1/tasks", json=spec())).json()["task"] for _ in range(2)]

    assert first != second


async def test_task_is_paused_resumed_and_cancelled(world: World, door: httpx.AsyncClient) -> None:
    await world.run("slow-1", until="accepted")

    states = [(await door.post(f"/v1/tasks/slow-1/{verb}")).json()["state"] for verb in ("pause", "pause", "resume", "cancel")]
    late = await door.post("/v1/tasks/slow-1/pause")

    assert states == ["paused", "paused", "running", "cancelled"]
    assert late.status_code == 409


async def test_live_task_is_not_deleted(world: World, door: httpx.AsyncClient) -> None:
    await world.run("slow-1", until="accepted")

    assert (await door.delete("/v1/tasks/slow-1")).status_code == 409


ROUTES = [
    "",
    "/spec",
    "/why",
    "/events",
    "/steps",
    "/evaluations",
    "/usage",
    "/failures",
    "/versions",
    "/versions/1/adapter.tar",
    "/versions/1/files/x",
]


@pytest.mark.parametrize("tenant", [None, "globex"])
async def test_foreign_and_absent_tasks_are_one_answer(world: World, door: httpx.AsyncClient, tenant: str | None) -> None:
    await world.run("slow-1", until="accepted")
    params = {"tenant": "globex"}

    for route in ROUTES:
        foreign = await door.get(f"/v1/tasks/slow-1{route}", params=params)
        absent = await door.get(f"/v1/tasks/nothing{route}", params=params)
        no_id = await door.get(f"/v1/tasks/No_Id{route}", params=params)
        assert (foreign.status_code, absent.status_code, no_id.status_code) == (404, 404, 404), route
        assert foreign.content == absent.content == no_id.content, route
    for verb in ("cancel", "pause", "resume"):
        assert (await door.post(f"/v1/tasks/slow-1/{verb}", params=params)).status_code == 404
    assert (await door.delete("/v1/tasks/slow-1", params=params)).status_code == 404
    assert (await door.get("/v1/tasks/slow-1")).json()["state"] == "running"


async def test_records_of_a_task(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a-1", spec(keep={"adapters": "all"}))

    steps = (await door.get("/v1/tasks/a-1/steps", params={"after": 1})).json()
    usage = (await door.get("/v1/tasks/a-1/usage")).json()
    events = (await door.get("/v1/tasks/a-1/events", params={"after": 1})).json()
    versions = (await door.get("/v1/tasks/a-1/versions")).json()

    assert [step["version"] for step in steps["steps"]] == [2, 3]
    assert usage["sampled_tokens"] > 0
    assert [event["number"] for event in events["events"]] == list(range(2, events["last"] + 1))
    assert (versions["latest"], len(versions["versions"])) == (3, 3)
    assert (await door.get("/v1/tasks/a-1/failures")).json() == {"failures": [], "has_more": False}
    assert (await door.get("/v1/tasks/a-1/evaluations")).json()["evaluations"] == []
    assert (await door.post("/v1/tasks/a-1/failures/1/resend")).status_code == 404


async def test_failure_is_read_and_its_message_sent_again(world: World, door: httpx.AsyncClient) -> None:
    await world.begin("slow-1", opened=4)
    await world.begin("slow-2")
    lost = scored(world.stages.opened[0], 1, reward=5.0)
    sequence = await world.bus.publish(lost)
    letter = DeadLetter(stage="settle", subject=lost.subject, reason="disk full", attempts=2, headers={}, body=b"", sequence=sequence)
    await world.bus.publish(Outgoing(streams.failed("settle", "slow-1"), letter, "letter"))
    await world.rows_become("SELECT count(*) FROM dead_letters", [(1,)])

    [failure] = (await door.get("/v1/tasks/slow-1/failures")).json()["failures"]
    others = await door.post(f"/v1/tasks/slow-2/failures/{failure['letter']}/resend")
    resent = await door.post(f"/v1/tasks/slow-1/failures/{failure['letter']}/resend")

    assert (failure["reason"], failure["attempts"]) == ("disk full", 2)
    assert (others.status_code, resent.status_code) == (404, 204)
    await eventually_equals(lambda: world.bus.streams.subjects(streams.SCORED), {lost.subject: 2})


async def test_what_the_deployment_offers(world: World, door: httpx.AsyncClient) -> None:
    async def services() -> set[str]:
        return {one["service"] for one in (await door.get("/v1/replicas")).json()["replicas"]}

    await world.run("a-1")

    assert [pool["name"] for pool in (await door.get("/v1/pools")).json()["pools"]] == ["tiny"]
    assert (await door.get("/v1/environments")).json()["environments"] == ["toy"]
    await eventually_equals(services, {"env", "gateway", "rollout"}, 30)
    assert [one["task"] for one in (await door.get("/v1/usage")).json()["tasks"]] == ["a-1"]


async def test_scheduler_away(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    """A submission is stored, and read once there is a scheduler; everything else is to be asked again."""
    async with gateway(bus, nats_url, until_ready=False, submit_timeout_s=1.0) as address, client(address) as door:
        async with asyncio.timeout(60):
            while (submitted := await door.post("/v1/tasks", json=spec())).status_code == 503:
                continue  # NATS has not stored it in that second: it is to be submitted again
        asked = await door.get("/v1/tasks")
        unready = await door.get("/readyz")
        async with running_world(bus, database_url, stages(bus, tmp_path / "made")) as world:
            await world.event(submitted.json()["task"], "finished")

    assert submitted.status_code == 202
    assert submitted.headers["location"] == f"/v1/tasks/{submitted.json()['task']}"
    assert (asked.status_code, asked.headers["retry-after"]) == (503, "2")
    assert (unready.status_code, unready.json()["detail"]) == (503, "no scheduler answers")
