"""Limits over several gateways, on a real NATS."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path

import pytest
from pydantic import ValidationError

from common.bus import Bus
from common.client_api.asking import Door
from common.errors import Unavailable
from common.messages import HttpUse, ServedDelta
from common.messages.serving import ServedSampling
from common.streams import HTTP_USE_BUCKET
from gateway_svc.access import Caller
from gateway_svc.limits.account import AHEAD_SHARE, BACKOFF_S, Account, LimitMet, StoreUnavailable
from gateway_svc.limits.limiter import Limiter
from gateway_svc.limits.window import STREAMS_S, Allowed, Amounts, Use
from gateway_svc.openai.sampling.choices import Choice, Prompt
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from tests.support.buses import HASTY
from tests.support.gateway.deltas import Part, deltas
from tests.support.servers import running
from tests.support.waiting import at_work, eventually

REQUEST = Amounts(requests=1)


@asynccontextmanager
async def accounts(url: str, replicas: int) -> AsyncGenerator[list[Account]]:
    """The same tenant's account at several gateways, each with a connection of its own."""
    async with AsyncExitStack() as opened:
        buses = [await opened.enter_async_context(await Bus.connect(url, f"gateway-{at}", timings=HASTY)) for at in range(replicas)]
        found = [Account(bus, "tenant.acme", f"gateway-{at}") for at, bus in enumerate(buses)]
        yield found
        for one in found:
            await one.close()


async def granted(account: Account, allowed: Allowed, amounts: Amounts = REQUEST, *, times: int) -> int:
    """How many of `times` requests at once fit."""
    found = await asyncio.gather(*(account.take(amounts, allowed) for _ in range(times)), return_exceptions=True)
    assert all(isinstance(one, int | LimitMet) for one in found), found
    return sum(isinstance(one, int) for one in found)


async def stored(bus: Bus) -> Use:
    return Use.of(await bus.kv.get(HTTP_USE_BUCKET, "tenant.acme", HttpUse), bus.clock.now_s())


@pytest.mark.parametrize("replicas", [1, 2, 4])
async def test_burst_over_all_gateways_gets_the_limit(bus: Bus, nats_url: str, replicas: int) -> None:
    limit = Allowed(requests=400)
    async with accounts(nats_url, replicas) as found:
        sums = await asyncio.gather(*(granted(account, limit, times=300 + 200 // replicas) for account in found))
        assert 0.9 * 400 <= sum(sums) <= 400, sums
        with pytest.raises(LimitMet) as met:
            await found[0].take(Amounts(requests=20), limit)
        assert (met.value.kind, met.value.allowed) == ("requests", 400) and 30 < met.value.wait_s <= 62
        assert (await stored(bus)).used("requests") <= 400


async def test_requests_in_quick_succession_share_exchanges(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway_svc.limits.account.AHEAD_S", 1.0)  # as quick as an exchange is on a machine that others use
    async with accounts(nats_url, 1) as [account]:
        for _ in range(2_000):
            await account.take(REQUEST, Allowed(requests=100_000))
        assert account.exchanges < 600, account.exchanges
        assert (await stored(bus)).used("requests") >= 2_000


async def test_what_was_not_used_is_given_back(bus: Bus, nats_url: str) -> None:
    limit = Allowed(tokens=1_000)
    async with accounts(nats_url, 2) as [one, other]:
        slot = await one.take(Amounts(tokens=900), limit)
        with pytest.raises(LimitMet):
            await other.take(Amounts(tokens=900), limit)
        one.correct("tokens", slot, -850)
        one.upkeep()
        await eventually(lambda: one._exchanging is None)
        await asyncio.sleep(0.15)
        await other.take(Amounts(tokens=900), limit)
        assert 950 <= (await stored(bus)).used("tokens") <= 950 + 1_000 // AHEAD_SHARE
        assert one.standing("tokens", 1_000).limit == 1_000


async def test_request_that_never_fits_says_so(bus: Bus, nats_url: str) -> None:
    async with accounts(nats_url, 1) as [account]:
        with pytest.raises(LimitMet) as met:
            await account.take(Amounts(tokens=1_001), Allowed(tokens=1_000))
        assert math.isinf(met.value.wait_s)


async def test_replies_at_once_are_counted_over_all_gateways(bus: Bus, nats_url: str) -> None:
    limit, reply = Allowed(streams=10), Amounts(streams=1)
    async with accounts(nats_url, 2) as [one, other]:
        assert await granted(one, limit, reply, times=6) == 6
        assert await granted(other, limit, reply, times=6) == 4
        one.end(3)
        one.upkeep()
        await eventually(lambda: one._exchanging is None)
        await asyncio.sleep(0.15)
        assert await granted(other, limit, reply, times=6) == 3
        one.end(3)
        other.end(7)
        for account in (one, other):
            await account.close()
        assert (await stored(bus)).used("streams") == 0


async def test_replies_of_a_gateway_that_died_are_over(bus: Bus) -> None:
    dead = Use.of(None, bus.clock.now_s() - STREAMS_S - 1)
    dead.hold("gateway-dead", 10)
    await bus.kv.put(HTTP_USE_BUCKET, "tenant.acme", dead.message())
    account = Account(bus, "tenant.acme", "gateway-0")
    await account.take(Amounts(streams=1), Allowed(streams=1))
    account.end(1)
    await account.close()


async def test_client_that_goes_while_it_waits_uses_nothing(bus: Bus) -> None:
    account, limit = Account(bus, "tenant.acme", "gateway-0"), Allowed(requests=5, streams=5)
    for _ in range(5):
        waiting = asyncio.create_task(account.take(Amounts(requests=1, streams=1), limit))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    await account.close()
    await account.close()
    use = await stored(bus)
    assert (use.used("requests"), use.used("streams")) == (0, 0)


async def test_long_reply_is_charged_where_replies_have_no_limit(bus: Bus, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its account is not forgotten before it ends: here at once, where nothing holds it."""
    monkeypatch.setattr("gateway_svc.limits.account.IDLE_S", 0.0)
    monkeypatch.setattr("gateway_svc.limits.limiter.UPKEEP_S", 0.01)
    rounds, upkeep = list[Account](), Account.upkeep

    def counted(account: Account) -> None:
        rounds.append(account)
        upkeep(account)

    monkeypatch.setattr(Account, "upkeep", counted)
    limiter = Limiter(bus, GatewaySettings(nats_url=nats_url, max_streams=None, key_max_streams=None))
    caller = Caller(Door(bus, nats_url, "acme"), "acme", "member", "")

    async def reply() -> AsyncGenerator[tuple[int, ServedDelta]]:
        for delta in deltas([Part("a", ids=100), Part("b", ids=2900)]):
            yield 0, delta

    bounded = limiter.bounded(reply(), [Choice(Prompt(text="x"), ServedSampling(seed=1))], caller, "acme", lambda _: None)
    await anext(bounded)
    async with at_work(limiter.run()):
        await eventually(lambda: len(rounds) > 3 or not limiter._accounts, 30)
        assert len([one async for one in bounded]) == 2
        await eventually(lambda: not limiter._accounts, 30)
        assert 3_007 <= (await stored(bus)).used("tokens") <= 3_007 + 512
    assert len(set(rounds)) == 1


@pytest.mark.parametrize(("given", "limit"), [("none", None), ("0", 0), ("7", 7), ("-1", "refused"), ("x", "refused")])
def test_limit_as_it_is_set(given: str, limit: object) -> None:
    with pytest.raises(ValidationError) if limit == "refused" else nullcontext():
        assert GatewaySettings.model_validate({"max_streams": given}).max_streams == limit


async def test_store_that_is_away_is_said_and_comes_back(tmp_path: Path) -> None:
    port = servers.lasting_port()
    command = servers.nats_command(tmp_path / "nats", port, sync="1s")
    limit = Allowed(requests=3)
    with running(command, port, tmp_path / "nats.log"):
        bus = await Bus.connect(servers.nats_url(port), "gateway", timings=HASTY)
        await bus.declare()
        account = Account(bus, "tenant.acme", "gateway-0")
        await account.take(REQUEST, limit)
    await eventually(lambda: not bus.is_connected, 30)
    with pytest.raises(StoreUnavailable):
        await account.take(REQUEST, limit)
    with running(command, port, tmp_path / "nats.log"):
        await eventually(lambda: bus.is_connected, 30)
        await asyncio.sleep(BACKOFF_S)
        assert await granted(account, limit, times=5) == 2, "what was used before still counts"
        await account.close()
        await bus.__aexit__(None, None, None)


async def test_bucket_that_there_is_not_is_a_store_that_is_away(nats_url: str) -> None:
    async with accounts(nats_url, 1) as [account]:
        with pytest.raises(StoreUnavailable):
            await account.take(REQUEST, Allowed(requests=3))


async def test_tenant_that_nothing_proves_is_refused_while_no_scheduler_answers(bus: Bus, nats_url: str) -> None:
    """What is sampled for one that there is not could be booked for nobody."""
    limiter = Limiter(bus, GatewaySettings(nats_url=nats_url))
    with pytest.raises(Unavailable, match="typo"):
        await limiter.check_sampling("typo", exists=False)
    assert await limiter.check_sampling("acme", exists=True) is None
