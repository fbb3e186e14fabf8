"""What clients are told of limits and budgets, in the shape of each family; a real gateway, NATS, scheduler and PostgreSQL."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from common.bus import Bus
from common.messages import HttpUse
from common.pools import Pool
from common.pools.pool import Serving
from common.streams import HTTP_USE_BUCKET
from gateway_svc.limits.window import Use
from tests.support.gateway.deltas import Part, Source, deltas
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.finished import stages
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.waiting import eventually, eventually_equals

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 20}
ACME = {"tenant": "acme"}


async def tenant(world: World, **limits: int) -> None:
    async with world.database.transaction() as tx:
        await tx.connection.execute(text("INSERT INTO tenants (id, weight) VALUES ('acme', 3)"))
        if limits:
            names = ", ".join(limits)
            await tx.connection.execute(
                text(f"INSERT INTO limits (tenant, {names}) VALUES ('acme', {', '.join(map(str, limits.values()))})")
            )


@asynccontextmanager
async def door(world: World, url: str, source: Source | None = None, **settings: Any) -> AsyncGenerator[httpx.AsyncClient]:
    source = source or Source(lambda _: deltas([Part("a"), Part("b")]))
    async with gateway(world.bus, url, sampler=source, **settings) as address, client(address) as found:
        yield found


async def used(bus: Bus, rate: Any) -> int:
    return Use.of(await bus.kv.get(HTTP_USE_BUCKET, "tenant.acme", HttpUse), bus.clock.now_s()).used(rate)


async def is_charged(bus: Bus, lowest: int, highest: int) -> None:
    """Wait until so many tokens are used: the gateway corrects what it has charged a moment after the answer."""

    async def is_so() -> bool:
        return lowest <= await used(bus, "tokens") <= highest

    await eventually(is_so, 60)


async def test_answers_say_where_rates_stand(world: World, nats_url: str) -> None:
    await tenant(world, requests_per_minute=1000, tokens_per_minute=5000)
    async with door(world, nats_url) as http:
        listed = await http.get("/v1/tasks", params=ACME)
        chat = await http.post("/v1/chat/completions", params=ACME, json=CHAT)
        streamed = await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"stream": True})
        everybody = await http.get("/v1/tasks")
        asked = await http.post("/v1/ask/tasks", params=ACME, json={})
        job = await http.post("/v1/jobs/pause", params=ACME, json={"task": "a", "tenant": "acme"})

    remaining = [int(one.headers["x-ratelimit-remaining-requests"]) for one in (asked, job)]
    assert (asked.status_code, job.status_code, remaining) == (200, 202, [996, 995])
    assert listed.status_code == chat.status_code == streamed.status_code == everybody.status_code == 200
    assert (listed.headers["x-ratelimit-limit-requests"], listed.headers["x-ratelimit-remaining-requests"]) == ("1000", "999")
    assert re.fullmatch(r"1m\ds|[45]\ds", listed.headers["x-ratelimit-reset-requests"])
    assert chat.headers["x-ratelimit-limit-tokens"] == streamed.headers["x-ratelimit-limit-tokens"] == "5000"
    assert 4900 < int(streamed.headers["x-ratelimit-remaining-tokens"]) < 5000
    assert "x-ratelimit-limit-requests" not in everybody.headers, "an admin who names no tenant has no limit"


async def test_request_too_many_is_429_in_the_shape_of_its_family(world: World, nats_url: str) -> None:
    await tenant(world, requests_per_minute=3)
    async with door(world, nats_url) as http:
        for _ in range(3):
            assert (await http.get("/v1/tasks", params=ACME)).status_code == 200
        task, chat = await http.get("/v1/tasks", params=ACME), await http.post("/v1/chat/completions", params=ACME, json=CHAT)
        other = await http.get("/v1/tasks", params={"tenant": "globex"})

    assert (task.status_code, task.headers["content-type"], task.json()["code"]) == (429, "application/problem+json", "rate_limited")
    assert task.json()["detail"].startswith("requests_per_minute: at most 3 HTTP requests a minute, 3 are used; send it later in ")
    assert 1 <= int(task.headers["retry-after"]) <= 62
    assert task.headers["x-ratelimit-remaining-requests"] == "0"
    error = chat.json()["error"]
    assert (chat.status_code, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert other.status_code == 200


async def test_tokens_that_were_not_given_are_given_back(world: World, nats_url: str) -> None:
    """A request is charged its prompt and its maximum at first, then what usage says."""
    await tenant(world, tokens_per_minute=2000)
    total = 0
    async with door(world, nats_url) as http:
        for _ in range(5):
            answer = await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"max_tokens": 1500})
            assert answer.status_code == 200, answer.text
            total = answer.json()["usage"]["total_tokens"]
        never = await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"max_tokens": 2500})
        await is_charged(world.bus, 5 * total, 5 * total + 20)
    assert (never.status_code, never.headers["x-should-retry"]) == (429, "false")


async def test_reply_longer_than_assumed_is_charged(world: World, nats_url: str) -> None:
    await tenant(world, tokens_per_minute=100_000)
    long = Source(lambda _: deltas([Part("a", ids=400)] * 4))
    async with door(world, nats_url, long) as http:
        answer = await http.post("/v1/chat/completions", params=ACME, json={key: CHAT[key] for key in ("model", "messages")})
        assert answer.json()["usage"]["total_tokens"] == 1607
        await is_charged(world.bus, 1607, 1607 + 1000)


async def test_replies_at_once_end_with_their_clients(world: World, nats_url: str) -> None:
    await tenant(world, max_streams=2)
    held = Source(lambda _: deltas([Part("a"), Part("b")]), hold_after=1)
    async with door(world, nats_url, held) as http:
        one = asyncio.create_task(http.post("/v1/chat/completions", params=ACME, json=CHAT | {"n": 2}))
        await eventually(lambda: len(held.open) == 2)
        refused = await http.post("/v1/chat/completions", params=ACME, json=CHAT)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "max_streams: at most 2 replies that are sampled concurrently" in refused.json()["error"]["message"]
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        await eventually(lambda: not held.open)
        await eventually_equals(lambda: used(world.bus, "streams"), 0, 60)
    quick = Source(lambda _: deltas([Part("a")]))
    async with door(world, nats_url, quick) as http:
        assert (await http.post("/v1/chat/completions", params=ACME, json=CHAT)).status_code == 200


@pytest.mark.parametrize(("period", "until"), [("month", "until 2"), ("total", "until an operator raises it")])
async def test_used_up_budget_is_402_for_submits_and_sampling(world: World, nats_url: str, period: str, until: str) -> None:
    await world.run("sums-1", spec())
    async with world.database.transaction() as tx:
        budget = (
            "INSERT INTO budgets (tenant, period, unit, amount, before, begins_at) VALUES ('acme', :period, 'tokens', 5, 0, '-infinity')"
        )
        await tx.connection.execute(text(budget), {"period": period})
    async with door(world, nats_url) as http:

        async def is_known() -> httpx.Response:
            return await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"model": "sums-1@latest"})

        async with asyncio.timeout(30):
            while (chat := await is_known()).status_code != 402:
                await asyncio.sleep(0.3)
        task = await http.post("/v1/tasks", params=ACME, json={**spec(), "name": "more"})
        previewed = await http.post("/v1/tasks", params={**ACME, "dry_run": "true"}, json={**spec(), "name": "more"})
        read = await http.get("/v1/tasks/sums-1", params=ACME)

    assert (chat.json()["error"]["type"], chat.json()["error"]["code"]) == ("insufficient_quota", "budget_used_up")
    assert (task.status_code, task.json()["code"]) == (402, "budget_used_up")
    assert task.json()["detail"].startswith("the budget of 5 tokens") and until in task.json()["detail"]
    assert (previewed.status_code, read.status_code) == (200, 200)


async def test_limit_of_all_tokens_is_a_budget_too(world: World, nats_url: str) -> None:
    await world.run("sums-1", spec())
    await world.execute("INSERT INTO limits (tenant, max_tokens) VALUES ('acme', 5)")
    async with door(world, nats_url) as http:
        chat = await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"model": "sums-1@latest"})
    assert (chat.status_code, chat.json()["error"]["code"]) == (402, "budget_used_up")


async def test_absent_tenant_is_refused_and_leaves_nothing(world: World, nats_url: str) -> None:
    async with door(world, nats_url) as http:
        refused = await http.post("/v1/chat/completions", params={"tenant": "typo"}, json=CHAT)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (404, "tenant_not_found", "tenant")


async def test_weight_of_the_tenant_goes_with_its_requests(world: World, nats_url: str) -> None:
    await tenant(world)
    source = Source(lambda _: deltas([Part("a")]))
    async with door(world, nats_url, source) as http:
        assert (await http.post("/v1/chat/completions", params=ACME, json=CHAT)).status_code == 200
    assert [target.weight for _, _, target in source.choices] == [3.0]


async def test_without_its_store_only_reading_goes_on(world: World, nats_url: str) -> None:
    await tenant(world, requests_per_minute=100)
    await world.bus._connection.js.delete_stream(f"KV_{HTTP_USE_BUCKET}")
    async with door(world, nats_url) as http:
        read = await http.get("/v1/tasks", params=ACME)
        asked = await http.post("/v1/ask/tasks", params=ACME, json={})
        chat = await http.post("/v1/chat/completions", params=ACME, json=CHAT)
        job = await http.post("/v1/jobs/pause", params=ACME, json={"task": "a", "tenant": "acme"})
    assert (read.status_code, asked.status_code, job.status_code) == (200, 200, 503)
    assert (chat.status_code, chat.json()["error"]["code"], chat.headers["retry-after"]) == (503, "limits_unavailable", "2")


async def test_pool_that_serves_nothing_is_refused_at_once(bus: Bus, database_url: str, nats_url: str, tmp_path: Path) -> None:
    """By a gateway with its own client of samplers; the pools that serve are named."""
    silent = Pool(model="models/tiny", context_tokens=512, max_rank=16)
    pools = {"tiny": silent, "other": silent.model_copy(update={"serving": Serving()})}
    async with running_world(bus, database_url, stages(bus, tmp_path / "made"), pools=pools) as world:
        await tenant(world)
        async with gateway(world.bus, nats_url, first_token_s=600.0) as address, client(address) as http:
            refused = [
                await http.post("/v1/chat/completions", params=ACME, json=CHAT | {"stream": is_streamed}) for is_streamed in (False, True)
            ]
    for answer in refused:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], answer.headers["x-should-retry"]) == (409, "pool_without_serving", "false")
        assert "pools that do: other" in error["message"]
