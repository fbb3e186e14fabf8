"""Listing of tasks by HTTP."""

import httpx

from tests.support.scheduler.stages import World, spec


async def test_tasks_are_filtered_sorted_and_paged(world: World, door: httpx.AsyncClient) -> None:
    for name in ("one", "two", "three"):
        await world.run(f"{name}-1", spec(name=name))
    await world.run("slow-1", spec(name="slow"), until="accepted")

    first = (await door.get("/v1/tasks", params={"limit": 3, "sort": "id"})).json()
    second = (await door.get("/v1/tasks", params={"limit": 3, "sort": "id", "cursor": first["cursor"]})).json()
    running = (await door.get("/v1/tasks", params={"state": ["running", "paused"]})).json()
    found = (await door.get("/v1/tasks", params={"text": "THREE"})).json()

    assert [task["task"] for task in first["tasks"] + second["tasks"]] == ["one-1", "slow-1", "three-1", "two-1"]
    assert second["cursor"] is None
    assert [task["task"] for task in running["tasks"]] == ["slow-1"]
    assert [task["name"] for task in found["tasks"]] == ["three"]


async def test_wrong_parameters_are_named(door: httpx.AsyncClient) -> None:
    answer = await door.get("/v1/tasks", params={"limit": 0, "cursor": "x"})
    other_order = (await door.get("/v1/tasks", params={"cursor": "x~y"})).json()

    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in answer.json()["errors"]] == ["limit"]
    assert [error["field"] for error in other_order["errors"]] == ["cursor"]
