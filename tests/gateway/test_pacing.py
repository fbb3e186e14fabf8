"""A sender's requests are prepared a few at a time, so that another sender's are answered meanwhile."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway_svc.http.gateway import Drain
from gateway_svc.http.guard import Guard
from gateway_svc.limits.preparation_slots import BURST_S, MAX_CONCURRENT, SHARE, Meter, PreparationSlots, TooBusy
from gateway_svc.settings import GatewaySettings


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_are_handed_over_and_nothing_is_left_behind() -> None:
    pacing = PreparationSlots(max_concurrent=2, hold_s=60)
    first, second = await pacing.begin("a"), await pacing.begin("a")
    third, fourth = (asyncio.create_task(pacing.begin("a")) for _ in range(2))
    other = await asyncio.wait_for(pacing.begin("b"), 60)  # another sender has places of its own
    await _settle()
    assert not third.done()
    first.leave()
    first.leave()  # once is enough
    await _settle()
    assert third.done()
    assert not fourth.done()
    fourth.cancel()
    await _settle()
    for place in (second, other, third.result()):
        place.leave()
    assert pacing.senders == 0


async def test_request_whose_client_goes_as_its_turn_comes_hands_its_place_on() -> None:
    pacing = PreparationSlots(max_concurrent=1, hold_s=60)
    first = await pacing.begin("a")
    gone, last = (asyncio.create_task(pacing.begin("a")) for _ in range(2))
    await _settle()
    first.leave()
    gone.cancel()
    (await asyncio.wait_for(last, 60)).leave()
    assert pacing.senders == 0


async def test_request_keeps_the_next_one_waiting_for_a_moment_only() -> None:
    pacing = PreparationSlots(max_concurrent=1, hold_s=0.01)
    await pacing.begin("a")
    await asyncio.wait_for(pacing.begin("a"), 60)


class Turning:
    """An application that needs many turns of the loop for an answer; it counts how many requests of each query run at once."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode()
        self.running[query] += 1
        self.most[query] = max(self.most[query], self.running[query])
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        for _ in range(20):
            await asyncio.sleep(0)
        self.running[query] -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


def _client(app: Turning, **options: float) -> httpx.AsyncClient:
    gateway = SimpleNamespace(settings=GatewaySettings(), drain=Drain())
    guard = Guard(app, cast(Any, gateway), [], PreparationSlots(**cast(Any, options)))
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1")


async def test_burst_of_one_tenant_runs_a_few_requests_at_once_and_another_is_answered_before_it() -> None:
    app = Turning()
    async with _client(app, hold_s=60) as client:
        burst = [asyncio.create_task(client.post("/v1/x?tenant=a", content=b"x")) for _ in range(60)]
        await _settle()
        assert (await client.post("/v1/x?tenant=b", content=b"whole")).content == b"whole"
        assert sum(one.done() for one in burst) < 30
        assert {answer.status_code for answer in await asyncio.gather(*burst)} == {200}
    assert app.most == {"tenant=a": MAX_CONCURRENT, "tenant=b": 1}


@pytest.mark.parametrize("head", [{"content-length": "4"}, {}], ids=["announced", "chunked"])
async def test_bodies_that_dribble_keep_no_other_request_of_their_sender_waiting(head: dict[str, str]) -> None:
    app, rest = Turning(), asyncio.Event()

    async def dribbled() -> AsyncGenerator[bytes]:
        yield b"ab"
        await rest.wait()
        yield b"cd"

    async with _client(app) as client:
        slow = [asyncio.create_task(client.post("/v1/x?tenant=a", content=dribbled(), headers=head)) for _ in range(3 * MAX_CONCURRENT)]
        await _settle()
        assert (await asyncio.wait_for(client.get("/v1/x?tenant=a"), 60)).status_code == 200
        assert app.most["tenant=a"] == 1 or not head  # a short body is complete before its request begins
        rest.set()
        assert [answer.content for answer in await asyncio.gather(*slow)] == [b"abcd"] * len(slow)


async def test_requests_that_are_overdue_in_one_moment_are_answered_a_few_in_a_turn() -> None:
    turn, answered, loop = 0, Counter[int](), asyncio.get_running_loop()

    def tick() -> None:
        nonlocal turn
        turn += 1
        ticking[0] = loop.call_soon(tick)

    async def never() -> Message:
        return await loop.create_future()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 408
            answered[turn] += 1

    gateway = SimpleNamespace(settings=GatewaySettings(timeout_s=0.05), drain=Drain())
    guard = Guard(Turning(), cast(Any, gateway), [], PreparationSlots(hold_s=60))
    head = [(b"host", b"127.0.0.1"), (b"content-length", b"4")]
    scope = {"type": "http", "method": "POST", "path": "/v1/x", "query_string": b"", "headers": head}
    ticking = [loop.call_soon(tick)]
    try:
        await asyncio.gather(*(guard(dict(scope), never, send) for _ in range(40)))
    finally:
        ticking[0].cancel()
    assert answered.total() == 40
    assert max(answered.values()) <= MAX_CONCURRENT


async def test_a_sender_waits_until_its_share_has_paid_for_what_its_requests_cost_and_others_do_not() -> None:
    now_s = 0.0
    pacing = PreparationSlots(hold_s=60, monotonic_s=lambda: now_s)
    place = await pacing.begin("a")
    place.charge(0.5)
    place.leave()
    waiting = asyncio.create_task(pacing.begin("a"))
    await _settle()
    assert not waiting.done()
    (await asyncio.wait_for(pacing.begin("b"), 60)).leave()
    waiting.cancel()
    place.charge(2.0)
    with pytest.raises(TooBusy) as refused:
        await pacing.begin("a")
    assert refused.value.wait_s == pytest.approx(2.5 / SHARE - BURST_S)
    await _settle()
    assert pacing.senders == 0
    now_s = 2.5 / SHARE
    (await asyncio.wait_for(pacing.begin("a"), 60)).leave()


async def test_a_meter_counts_the_steps_of_its_request_and_nothing_else() -> None:
    now_s = 0.0

    async def request() -> None:
        nonlocal now_s
        now_s += 0.25
        await asyncio.sleep(0)
        now_s += 0.5
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 0.01)
        assert meter.spent_s == 0.75

    async def other() -> None:
        nonlocal now_s
        await asyncio.sleep(0)
        now_s += 7.0

    meter = Meter(request(), lambda: now_s)

    async def metered() -> None:
        await meter

    await asyncio.gather(metered(), other())


async def test_a_request_that_costs_more_than_an_ordinary_one_is_charged_to_its_sender() -> None:
    charged = list[float]()

    class Charging(PreparationSlots):
        def charge(self, sender: str, processor_s: float) -> None:
            charged.append(processor_s)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        began = time.thread_time()
        while (message := await receive()).get("more_body"):
            pass
        while scope["path"] == "/v1/dear" and time.thread_time() - began < 0.05:
            pass
        scope["state"]["is_malformed"] = message["type"] == "http.request" and scope["path"] == "/v1/malformed"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    gateway = SimpleNamespace(settings=GatewaySettings(), drain=Drain())
    guard = Guard(app, cast(Any, gateway), [], Charging())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
        await client.get("/v1/cheap")
        await client.get("/v1/dear")
        await client.post("/v1/malformed", content=b"short")
        await client.post("/v1/malformed", content=bytes(1024 * 1024))
    assert charged[0] < 0.02
    assert 0.04 < charged[1] < 0.2
    assert charged[2] < 0.02
    assert charged[3] > 0.0
