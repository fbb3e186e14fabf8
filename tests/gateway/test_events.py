"""Events as a stream: past and live, resumed anywhere, and ended."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from common.bus import Bus
from gateway_svc.access import Caller, OpenAccess
from gateway_svc.http.event_stream import Ends, EventStream, Sse
from gateway_svc.http.gateway import Drain
from tests.gateway.event_streams import STREAM, Stream
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.stages import World, spec


async def read(door: httpx.AsyncClient, task: str, *, most: int = 10**6, **headers: str) -> list[dict[str, str]]:
    """The first events of a stream, or all until it ends."""
    found: list[dict[str, str]] = []
    async with door.stream("GET", f"/v1/tasks/{task}/events", headers=STREAM | headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        async for event in Stream(answer):
            found.append(event)
            if len(found) == most:
                break
    return found


async def test_stream_has_past_and_live_events_once_and_ends_with_the_task(world: World, door: httpx.AsyncClient) -> None:
    await world.run("slow-1", spec(), until="accepted")
    stream = asyncio.create_task(read(door, "slow-1"))
    await world.control("pause", "slow-1", until="paused")
    await world.control("cancel", "slow-1", until="cancelled")

    live, past = await stream, await read(door, "slow-1")

    assert [event["event"] for event in live] == ["accepted", "paused", "cancelled"]
    assert [int(event["id"]) for event in live] == [1, 2, 3]
    assert [event["id"] for event in past] == ["1", "2", "3"]


async def test_stream_goes_on_behind_the_last_event_on_another_gateway(world: World, nats_url: str, door: httpx.AsyncClient) -> None:
    await world.run("slow-1", until="accepted")
    await world.control("pause", "slow-1", until="paused")
    first = await read(door, "slow-1", most=2)

    async with gateway(world.bus, nats_url) as address, client(address) as other:
        rest = asyncio.create_task(read(other, "slow-1", **{"Last-Event-ID": first[-1]["id"]}))
        await world.control("resume", "slow-1", until="resumed")
        await world.control("cancel", "slow-1", until="cancelled")

        assert [event["id"] for event in first + await rest] == ["1", "2", "3", "4"]
        assert await read(other, "slow-1", **{"Last-Event-ID": "4"}) == []


async def test_last_event_must_be_a_number(world: World, door: httpx.AsyncClient) -> None:
    await world.run("a-1")

    for wrong in ("x", "-1", "9" * 30):
        answer = await door.get("/v1/tasks/a-1/events", headers=STREAM | {"Last-Event-ID": wrong})
        assert answer.status_code == 400
    assert (await door.get("/v1/tasks/a-1/events", headers={"Accept": "image/png"})).status_code == 406


async def test_streams_end_with_an_error_when_the_gateway_drains(world: World, nats_url: str) -> None:
    await world.run("slow-1", until="accepted")

    async with httpx.AsyncClient(timeout=60) as anyone:
        async with gateway(world.bus, nats_url) as address:
            anyone.base_url = httpx.URL(address)
            began, events = asyncio.Event(), list[dict[str, str]]()

            async def listen() -> None:
                async with anyone.stream("GET", "/v1/tasks/slow-1/events", headers=STREAM) as answer:
                    async for event in Stream(answer):
                        events.append(event)
                        began.set()

            stream = asyncio.create_task(listen())
            await asyncio.wait_for(began.wait(), 60)
        await stream

    assert [event["event"] for event in events] == ["accepted", "error"]


class Sent:
    """What an application sends; a client that takes everything, or goes."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.gone = asyncio.Event()
        self.changed = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.bodies.append(message.get("body", b""))
        self.changed.set()

    async def until(self, part: bytes) -> None:
        async with asyncio.timeout(60):
            while part not in b"".join(self.bodies):
                await self.changed.wait()
                self.changed.clear()


async def _caller(bus: Bus, url: str) -> Caller:
    async with OpenAccess(bus, url).entered(None) as caller:
        return caller


async def test_quiet_stream_has_comments_and_releases_all_when_the_client_goes(bus: Bus, nats_url: str) -> None:
    released, sent = asyncio.Event(), Sent()

    async def quiet() -> AsyncGenerator[Sse]:
        try:
            yield Sse("one")
            await asyncio.Event().wait()
        finally:
            released.set()

    response = EventStream(quiet(), Ends(await _caller(bus, nats_url), Drain(), is_resumable=True), comment_every_s=0.05)
    answering = asyncio.create_task(response({"type": "http"}, sent.receive, sent.send))
    await sent.until(b":\n\n")
    sent.gone.set()
    await asyncio.wait_for(answering, 60)

    assert released.is_set()


async def test_client_that_goes_while_it_is_sent_something_releases_all(bus: Bus, nats_url: str) -> None:
    """The generator waits at its `yield` then, and no cancellation reaches it."""
    released, sent, blocked = asyncio.Event(), Sent(), asyncio.Event()

    async def events() -> AsyncGenerator[Sse]:
        try:
            yield Sse("one")
        finally:
            released.set()

    async def send(message: Any) -> None:
        if b"one" in message.get("body", b""):
            blocked.set()
            await asyncio.Event().wait()

    stream = events()  # referred to here, so that it is not closed by the collector
    response = EventStream(stream, Ends(await _caller(bus, nats_url), Drain(), is_resumable=True))
    answering = asyncio.create_task(response({"type": "http"}, sent.receive, send))
    await asyncio.wait_for(blocked.wait(), 60)
    sent.gone.set()
    await asyncio.wait_for(answering, 60)

    assert released.is_set()


async def test_stream_ends_with_its_key(bus: Bus, nats_url: str) -> None:
    caller, sent = await _caller(bus, nats_url), Sent()

    async def endless() -> AsyncGenerator[Sse]:
        await asyncio.Event().wait()
        yield Sse("never")

    response = EventStream(endless(), Ends(caller, Drain(), is_resumable=False))
    answering = asyncio.create_task(response({"type": "http"}, sent.receive, sent.send))
    caller.ended.set()
    await asyncio.wait_for(answering, 60)

    assert b"unauthorized" in b"".join(sent.bodies)


def test_data_of_several_lines_keeps_them() -> None:
    assert Sse("a\nb", event="e", id="7").encode() == b"event: e\nid: 7\ndata: a\ndata: b\n\n"


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029"])
def test_an_event_is_one_line_for_readers_that_know_every_separator_of_unicode(separator: str) -> None:
    text = f"a{separator}b\nc"
    lines = Sse(ChatText(text=text).model_dump_json(), "delta", "1").encode().decode().splitlines()

    assert lines[:2] == ["event: delta", "id: 1"]
    assert json.loads(lines[2].removeprefix("data: ")) == {"text": text}
    assert lines[3:] == [""]


class ChatText(BaseModel):
    text: str
