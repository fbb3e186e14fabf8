"""Connections that are refused, silent or closed; readers; the clock."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from nats.errors import NoRespondersError
from nats.js.kv import KeyValue

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.bus.transport.timings import Timings
from common.errors import Fatal, Unavailable
from common.messages import ReplicaReport, TaskStatus
from common.resilience.backoff import Backoff
from common.task_states import TaskStates
from marlaas.stack import servers
from marlaas.stack.servers import Command
from tests.support.clock import Clocks
from tests.support.consuming import job
from tests.support.proxy import Wire
from tests.support.servers import running
from tests.support.waiting import eventually


async def test_unreadable_value_hides_no_other(bus: Bus) -> None:
    status = ReplicaReport(replica="good", service="env")
    await bus.kv.put(streams.REPLICAS_BUCKET, "env.good", status)
    await bus.publish_raw(streams.value_subject(streams.REPLICAS_BUCKET, "env.bad"), b"garbage", "bad", {})
    assert await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport) == [status]
    async for key, value in bus.kv.watch(streams.REPLICAS_BUCKET, ReplicaReport):
        assert (key, value) == ("env.good", status)
        break


async def test_service_waits_while_its_credentials_are_refused_and_continues_once_they_are_accepted(tmp_path: Path) -> None:
    port = servers.free_port()
    url = f"nats://marlaas:right@127.0.0.1:{port}"
    with running(with_password(servers.nats_command(tmp_path, port), "other"), port, tmp_path / "nats.log"):
        waiting = asyncio.create_task(Bus.connect(url, "test", until_accepted=True))
        with pytest.raises(Fatal, match="refuses the credentials"):
            await Bus.connect(url, "test")
        assert not waiting.done()
    with running(with_password(servers.nats_command(tmp_path, port), "right"), port, tmp_path / "nats.log"):
        async with asyncio.timeout(250):
            bus = await waiting
        assert bus.is_connected
        await bus.close()


def with_password(command: Command, password: str) -> Command:
    """The server, asking for one."""
    config = Path(command.argv[-1])
    config.write_text(f"{config.read_text()}\nauthorization {{ user: marlaas, password: {password} }}\n")
    return command


async def test_connection_on_which_nothing_comes_back_is_given_up(nats_url: str, bus: Bus) -> None:
    async with Wire("silent", int(nats_url.rpartition(":")[2])).listening() as wire:
        timings = Timings(connect_timeout_s=1.0, reconnect_s=0.1, ping_every_s=0.2)
        async with await Bus.connect(servers.nats_url(wire.port), "behind the wire", timings=timings) as behind:
            wire.silence()
            await eventually(lambda: not behind.is_connected)
            wire.cut()
            wire.speak()
            await eventually(lambda: behind.is_connected)
            assert await behind.publish(job("a")) == 1


async def test_followers_wait_for_a_server_that_is_slow_to_answer(nats_url: str, bus: Bus) -> None:
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state="finished", version=1, steps=1, submitted_s=0, updated_s=0)
    await bus.kv.put(streams.TASKS_BUCKET, "a", status)
    await bus.publish(Outgoing(streams.failed("jobs", "a"), status, "failed:a"))
    async with Wire("slow", int(nats_url.rpartition(":")[2])).listening() as wire:
        timings, tasks = Timings(answer_timeout_s=0.5, backoff=Backoff(0.05, 1.6)), TaskStates()
        async with await Bus.connect(servers.nats_url(wire.port), "behind the wire", timings=timings) as behind:
            wire.silence()
            followers = asyncio.gather(
                anext(aiter(behind.streams.follow(streams.FAILED, "failed.>"))),
                anext(aiter(behind.kv.watch(streams.TASKS_BUCKET, TaskStatus))),
                tasks.read(behind),
            )
            finished, _ = await asyncio.wait([followers], timeout=2 * timings.answer_timeout_s)
            assert not finished, "none of them gives up"
            wire.speak()
            await asyncio.wait_for(followers, timeout=250)
            assert tasks.has_ended("a")


@pytest.mark.parametrize("url", ["nats://user:secret@host:abc", "http://host:4222", "nats://", ","])
async def test_what_is_no_address_is_said_at_once(url: str) -> None:
    with pytest.raises(Fatal, match=r"is no address of NATS; one looks like .*; correct MARLAAS_NATS_URL") as caught:
        await Bus.connect(url, "lost", until_accepted=True)
    assert "secret" not in str(caught.value)


async def test_connection_that_is_closed_for_good_ends_the_service(nats_url: str) -> None:
    """nats-py does so after errors that it takes for final; the supervisor restarts the service."""
    bus = await Bus.connect(nats_url, "closed")
    await bus._connection.client.close()
    with pytest.raises(Fatal, match="NATS has closed the connection"):
        await asyncio.wait_for(bus.wait_fatal(), timeout=250)


async def test_listener_learns_at_once_that_its_connection_is_closed(nats_url: str) -> None:
    bus = await Bus.connect(nats_url, "closed")
    async with bus.requests.listening("events.nobody") as listening:
        waiting = asyncio.create_task(listening.next(250))
        await asyncio.sleep(0)
        await bus.close()
        with pytest.raises(Unavailable, match="connection closed"):
            await asyncio.wait_for(waiting, timeout=20)
        with pytest.raises(Unavailable, match="connection closed"):
            await listening.next(250)


CLOCKS = """
import asyncio, sys, time
from common.bus import Bus

async def main():
    bus = await Bus.connect(sys.argv[1], "clock")
    await bus.declare()
    print(time.time(), bus.clock.now_s())
    await bus.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_clock_of_deadlines_is_the_servers_and_not_this_hosts(nats_url: str, tmp_path: Path, ahead_s: int) -> None:
    clocks = Clocks.build(tmp_path / "clocks")
    if clocks is None:
        pytest.skip("no C compiler here, so no process can be given a clock of its own")
    env = os.environ | clocks.environment("here")
    clocks.jump("here", ahead_s)
    said = subprocess.run([sys.executable, "-c", CLOCKS, nats_url], env=env, capture_output=True, text=True, timeout=250, check=True)
    own_s, shared_s = map(float, said.stdout.split())
    assert abs(own_s - ahead_s - time.time()) < 60
    assert abs(shared_s - time.time()) < 60


async def test_bucket_that_seems_empty_for_a_moment_is_reread(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py's watcher reports the end when the server has sent all values, before they have arrived."""
    status = ReplicaReport(replica="one", service="env")
    await bus.kv.put(streams.REPLICAS_BUCKET, "env.one", status)
    honest, looks = KeyValue.watch, 0

    async def hasty(store: KeyValue, keys: str, **options: Any) -> KeyValue.KeyWatcher:
        nonlocal looks
        looks += 1
        watcher = await honest(store, keys, **options)
        if looks == 1:
            watcher._updates = asyncio.Queue()
            watcher._updates.put_nowait(None)
        return watcher

    monkeypatch.setattr(KeyValue, "watch", hasty)
    assert await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport) == [status]
    assert looks == 2


async def test_who_stops_waiting_for_a_subscription_ends_no_connection(bus: Bus) -> None:
    """As a client of HTTP does that goes while its events begin: the answer to nats-py's ping comes to nobody."""
    for turns in range(30):

        async def listen() -> None:
            async with bus.requests.listening("events.nobody"):
                await asyncio.sleep(60)

        listening = asyncio.create_task(listen())
        for _ in range(turns % 6):
            await asyncio.sleep(0)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    async with asyncio.timeout(60):
        await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        async with bus.requests.listening("events.nobody"):
            pass


async def test_live_messages_are_heard_until_one_cannot_be_taken(bus: Bus) -> None:
    taken, listens = list[int](), asyncio.Event()
    report = ReplicaReport(replica="r", service="gateway")

    async def take(delivery: Delivery) -> None:
        taken.append(delivery.sequence)
        if len(taken) == 3:
            raise ValueError("the third")

    hearing = asyncio.create_task(bus.requests.hear("replies.x", take, listens.set))
    await asyncio.wait_for(listens.wait(), 60)
    for _ in range(3):
        await bus.requests.send("replies.x", report)
    with pytest.raises(ValueError, match="the third"):
        await asyncio.wait_for(hearing, 60)
    assert taken == [0, 0, 0]


async def test_hearing_ends_with_the_connection(nats_url: str) -> None:
    listens = asyncio.Event()

    async def take(_: Delivery) -> None: ...

    bus = await Bus.connect(nats_url, "hears")
    hearing = asyncio.create_task(bus.requests.hear("replies.x", take, listens.set))
    await asyncio.wait_for(listens.wait(), 60)
    await bus.close()
    with pytest.raises(Unavailable, match="closed"):
        await asyncio.wait_for(hearing, 60)


@pytest.fixture
async def quiet(nats_url: str) -> AsyncIterator[Bus]:
    """A connection that sends nothing by itself."""
    async with await Bus.connect(nats_url, "quiet", timings=Timings(ping_every_s=600.0, clock_every_s=600.0)) as bus:
        yield bus


async def test_answer_to_a_ping_says_that_the_server_has_what_was_sent_before(quiet: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = quiet._connection.client, bytearray()
    transport = client._transport
    assert transport is not None

    def noted(parts: Sequence[bytes]) -> None:
        sent.extend(b"".join(parts))
        transport.writelines(list(parts))

    noting = Mock(wraps=transport, write=lambda part: noted([part]), writelines=noted, drain=AsyncMock())
    monkeypatch.setattr(client, "_transport", noting)
    subscription = await client.subscribe("elsewhere", cb=AsyncMock())
    await client.flush()
    await subscription.drain()
    assert [line.split()[0] for line in bytes(sent).splitlines()] == [b"SUB", b"PING", b"UNSUB", b"PING"]


async def test_request_without_an_answer_ends_in_time_and_leaves_nothing_behind(quiet: Bus) -> None:
    client = quiet._connection.client
    listening = await client.subscribe("silent")
    for stop in (asyncio.TimeoutError, asyncio.CancelledError):
        asked = asyncio.ensure_future(client.request("silent", b"", timeout=0.1 if stop is asyncio.TimeoutError else 60))
        await listening.next_msg(timeout=60)
        if stop is asyncio.CancelledError:
            asked.cancel()
        with pytest.raises(stop):
            await asked
        assert not client._resp_map
    with pytest.raises(NoRespondersError):
        await client.request("unsubscribed", b"")
