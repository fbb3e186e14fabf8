"""HTTP before a pool with latency goals: what would be late is refused at once, with when to retry."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.bus import Bus
from common.messages import ReplicaReport
from common.pools import Goals, Serving
from common.runtime.service import report_replica
from common.streams import REPLICAS_BUCKET
from tests.support.gateway.serving import client, gateway
from tests.support.rollout.replicas import Replica
from tests.support.scheduler.finished import stages
from tests.support.scheduler.stages import POOLS, World, running_world
from tests.support.waiting import at_work, eventually

ACME = {"tenant": "acme"}
SEATS = 4
GOALS = Goals(ttft_s=0.001, tpot_s=1.0)
"""The first token is always late; a request that finds a place is admitted all the same."""
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "What is 3 + 4?"}], "max_tokens": 30}


@asynccontextmanager
async def world_with(bus: Bus, database_url: str, folder: Path, **serving: Any) -> AsyncIterator[World]:
    pools = {"tiny": POOLS["tiny"].model_copy(update={"serving": Serving(sequences=SEATS, **serving)})}
    async with running_world(bus, database_url, stages(bus, folder / "made"), pools=pools) as world:
        await world.execute("INSERT INTO tenants (id) VALUES ('acme'), ('globex')")
        yield world


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    async with world_with(bus, database_url, tmp_path, ttft_ms=1000 * GOALS.ttft_s, tpot_ms=1000 * GOALS.tpot_s) as world:
        yield world


@asynccontextmanager
async def sampling(world: World, *, seats: int = SEATS) -> AsyncIterator[Replica]:
    """A replica whose reports say that it serves."""
    replica = Replica(world.bus, "r0", sequences=seats, goals=GOALS)
    replica.start()
    async with at_work(report_replica(world.bus, lambda: ReplicaReport(replica="r0", service="rollout", pool="tiny", serves=True))):
        yield replica
    await replica.stop()


@asynccontextmanager
async def door(world: World, nats_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway that knows the replica."""
    async with gateway(world.bus, nats_url) as address, client(address) as http:

        async def answers() -> bool:
            return (await http.post("/v1/chat/completions", params=ACME, json=BODY | {"max_tokens": 2})).status_code == 200

        await eventually(answers)
        yield http


async def crowd(http: httpx.AsyncClient, replica: Replica, number: int = SEATS) -> list[asyncio.Task[httpx.Response]]:
    """Requests that hold their places until the replica may go on."""
    replica.source.may_go_on.clear()
    before = len(replica.source.running)
    sent = [asyncio.create_task(http.post("/v1/chat/completions", params=ACME, json=BODY)) for _ in range(number)]
    await eventually(lambda: len(replica.source.running) == before + number)
    return sent


ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", BODY),
    ("/v1/chat/completions", BODY | {"stream": True}),
    ("/v1/completions", {"model": "tiny", "prompt": "a"}),
    ("/v1/responses", {"model": "tiny", "input": "a"}),
]


async def test_request_that_would_wait_is_refused_at_once_on_every_route_and_counted(world: World, nats_url: str) -> None:
    async with sampling(world) as replica, door(world, nats_url) as http:
        held, took_s = await crowd(http, replica), list[float]()
        for path, body in ROUTES:
            began = time.monotonic()
            refused = await http.post(path, params=ACME, json=body)
            took_s.append(time.monotonic() - began)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (503, "over_capacity"), error
            assert "pool 'tiny' is at its capacity" in error["message"] and "late" in error["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert sorted(took_s)[1] < 0.25, took_s  # without a wait for a place, which none gets
        assert len(replica.source.running) == SEATS
        await eventually(lambda: _has(world, {"goals_refused": len(ROUTES)}))
        replica.source.may_go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert (await http.post("/v1/chat/completions", params=ACME, json=BODY)).status_code == 200


async def _has(world: World, wanted: dict[str, float]) -> bool:
    """Whether the gateway's report has these figures."""
    reports = [one for one in await world.bus.kv.values(REPLICAS_BUCKET, ReplicaReport) if one.service == "gateway"]
    return any(wanted.items() <= report.busy.items() for report in reports)


async def test_several_choices_are_refused_together_and_leave_no_place_behind(world: World, nats_url: str) -> None:
    async with sampling(world) as replica, door(world, nats_url) as http:
        held = await crowd(http, replica, SEATS - 1)
        refused = await http.post("/v1/chat/completions", params=ACME, json=BODY | {"n": 3})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "over_capacity")
        await eventually(lambda: len(replica.source.running) == SEATS - 1)
        held += await crowd(http, replica, 1)
        replica.source.may_go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}


async def test_wrong_requests_are_named_so_beyond_capacity_too(world: World, nats_url: str) -> None:
    """What the request says comes first: another tenant's model is as absent as before, and garbage is garbage."""
    async with sampling(world) as replica, door(world, nats_url) as http:
        held = await crowd(http, replica)
        found = [
            (await http.post("/v1/chat/completions", params=params, json=body)).json()["error"]["code"]
            for params, body in [
                (ACME, BODY | {"model": "theirs@1"}),
                ({"tenant": "typo"}, BODY),
                (ACME, BODY | {"messages": "garbage"}),
                (ACME, BODY | {"asked_s": 1e18}),
            ]
        ]
        assert found[:2] == ["model_not_found", "tenant_not_found"]
        assert "over_capacity" not in found
        replica.source.may_go_on.set()
        await asyncio.gather(*held)


async def test_without_a_sampler_it_is_refused_at_once_until_one_serves(world: World, nats_url: str) -> None:
    async with gateway(world.bus, nats_url) as address, client(address) as http:

        async def answer() -> httpx.Response:
            return await http.post("/v1/chat/completions", params=ACME, json=BODY)

        async def is_refused() -> bool:
            found = await asyncio.wait_for(answer(), 10)
            return found.status_code == 503 and "no sampler is ready" in found.json()["error"]["message"]

        await eventually(is_refused)
        async with sampling(world):
            await eventually(lambda: _is_ok(answer))


async def _is_ok(answer: Callable[[], Awaitable[httpx.Response]]) -> bool:
    return (await answer()).status_code == 200


async def test_pool_without_goals_lets_requests_wait(bus: Bus, database_url: str, nats_url: str, tmp_path: Path) -> None:
    async with world_with(bus, database_url, tmp_path) as world, sampling(world) as replica, door(world, nats_url) as http:
        held = await crowd(http, replica)
        held.append(asyncio.create_task(http.post("/v1/chat/completions", params=ACME, json=BODY)))
        await eventually(lambda: replica.serving.requests == SEATS + 1)
        replica.source.may_go_on.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        [report] = [one for one in await world.bus.kv.values(REPLICAS_BUCKET, ReplicaReport) if one.service == "gateway"]
        assert report.busy == {}


async def test_time_of_a_request_is_that_of_its_complete_body(world: World, nats_url: str) -> None:
    """A slow upload is the client's time; preparation in the gateway is not."""
    async with sampling(world) as replica, door(world, nats_url) as http:
        replica.source.begun.clear()

        async def slow_body() -> AsyncGenerator[bytes]:
            written = json.dumps(BODY).encode()
            yield written[:10]
            await asyncio.sleep(1.0)
            yield written[10:]

        answer = await http.post("/v1/chat/completions", params=ACME, content=slow_body(), headers={"Content-Type": "application/json"})
        assert answer.status_code == 200
        [begun] = replica.source.begun
        assert begun.goals is not None
        age_s = time.monotonic() + GOALS.ttft_s - begun.goals.first_due_s
        assert 0 < age_s < answer.elapsed.total_seconds() - 0.9
