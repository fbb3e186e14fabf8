"""The bus against a real nats-server: what each outcome of a handler does to the message."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.kv import KeyValue

from common import streams
from common.backoff import Backoff
from common.bus import Bus, Delivery, Handler, Outgoing, Slots, spaced
from common.errors import Fatal, Reject, Retry, Unavailable
from common.messages import ControlTask, DeadLetter, ReplicaReport, SubmitTask, TaskStatus
from common.task_states import TaskStates
from common.timings import Timings
from marlaas.stack import servers
from marlaas.stack.servers import Command
from tests.chaos.clock import Clocks
from tests.chaos.proxy import Wire
from tests.conftest import eventually, running

JOBS = replace(streams.SCHEDULER_JOBS, ack_wait_s=60.0, max_attempts=3)


def job(task: str) -> Outgoing:
    return Outgoing(streams.submit("acme"), SubmitTask(task=task, tenant="acme", spec={}), f"submit:{task}")


@asynccontextmanager
async def consuming(bus: Bus, handler: Handler, slots: int = 4, consumer: streams.Consumer = JOBS) -> AsyncIterator[asyncio.Task[None]]:
    runner = asyncio.create_task(bus.consume(consumer, handler, Slots(slots)))
    try:
        yield runner
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def test_message_is_acknowledged_after_its_results_are_published(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        task = delivery.read(SubmitTask).task
        yield Outgoing(streams.checked(task), ControlTask(task=task, tenant="acme"), f"out:{task}")

    async with consuming(bus, handler):
        await bus.publish(job("a"))

        async def moved() -> bool:
            return await bus.streams.backlog(streams.JOBS) == 0 and await bus.streams.backlog(streams.TURNS) == 1

        await eventually(moved)


async def test_same_message_id_is_stored_once(bus: Bus) -> None:
    first, second = await bus.publish(job("a")), await bus.publish(job("a"))
    assert first == second
    assert await bus.streams.backlog(streams.JOBS) == 1


async def test_rejected_message_becomes_a_dead_letter_with_its_reason(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        raise Reject("no such thing")
        yield

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        async for delivery in bus.streams.follow(streams.FAILED, "failed.>"):
            letter = delivery.read(DeadLetter)
            break
        assert letter.reason == "no such thing"
        assert letter.subject == "jobs.submit.acme"
        assert SubmitTask.decode(letter.body).task == "a"

        async def gone() -> bool:
            return await bus.streams.backlog(streams.JOBS) == 0

        await eventually(gone)


async def test_retried_message_comes_again_and_others_are_not_held_up(bus: Bus) -> None:
    seen: list[tuple[str, int]] = []

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        task = delivery.read(SubmitTask).task
        seen.append((task, delivery.attempt))
        if task == "bad" and delivery.attempt < 3:
            raise Retry("not yet", delay_s=0.05)
        return
        yield

    async with consuming(bus, handler):
        await bus.publish(job("bad"))
        await bus.publish(job("good"))
        await eventually(lambda: ("bad", 3) in seen)
    assert seen.index(("good", 1)) < seen.index(("bad", 2))


async def test_no_attempt_is_counted_while_a_server_is_away(bus: Bus) -> None:
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        attempts.append(delivery.attempt)
        if len(attempts) <= JOBS.max_attempts + 1:
            raise Unavailable("PostgreSQL is away")
        return
        yield

    async with consuming(bus, handler):
        await bus.publish(job("a"))

        async def handled() -> bool:
            return await bus.streams.backlog(streams.JOBS) == 0

        await eventually(handled)
    assert attempts == [1] * (JOBS.max_attempts + 2)
    assert await bus.streams.backlog(streams.FAILED) == 0


async def test_bug_in_handler_is_a_dead_letter_after_the_last_attempt(bus: Bus) -> None:
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        attempts.append(delivery.attempt)
        raise ZeroDivisionError("oops")
        yield

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        async for delivery in bus.streams.follow(streams.FAILED, "failed.>"):
            assert delivery.read(DeadLetter).reason == "ZeroDivisionError: oops"
            break
    assert attempts == [1, 2, 3]


async def deliveries(bus: Bus, consumer: streams.Consumer) -> int:
    """How many the server has made of all messages together."""
    delivered = (await bus.blobs_context().consumer_info(consumer.stream, consumer.name)).delivered
    return delivered.consumer_seq if delivered else 0


async def test_work_that_blocks_the_event_loop_for_longer_than_its_lease_is_not_redelivered(bus: Bus) -> None:
    leased = replace(JOBS, ack_wait_s=1.0)
    ended = asyncio.Event()

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        time.sleep(2 * leased.ack_wait_s)
        await asyncio.sleep(0)
        time.sleep(leased.ack_wait_s)
        ended.set()
        return
        yield

    async with consuming(bus, handler, consumer=leased):
        await bus.publish(job("a"))
        await ended.wait()

        async def gone() -> bool:
            return await bus.streams.backlog(streams.JOBS) == 0

        await eventually(gone)
        assert await deliveries(bus, leased) == 1


async def test_work_that_outlives_its_lease_while_nats_is_unreachable_is_not_begun_again(nats_url: str, bus: Bus) -> None:
    leased = replace(JOBS, ack_wait_s=1.0)
    attempts: list[int] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        attempts.append(delivery.attempt)
        await may_end.wait()
        return
        yield

    async def redelivered() -> bool:
        return await deliveries(bus, leased) > 1

    async def gone() -> bool:
        return await bus.streams.backlog(streams.JOBS) == 0

    async with Wire("silent", int(nats_url.rpartition(":")[2])).listening() as wire:
        behind = await Bus.connect(servers.nats_url(wire.port), "behind the wire")
        try:
            async with consuming(behind, handler, consumer=leased):
                await bus.publish(job("a"))
                await eventually(lambda: attempts)
                wire.silence()
                await asyncio.sleep(2 * leased.ack_wait_s)
                wire.speak()
                await eventually(redelivered)
                may_end.set()
                await eventually(gone)
        finally:
            await behind.close()
    assert attempts == [1]


async def test_message_with_the_sequence_of_one_in_hand_is_another_where_its_stream_is_new(bus: Bus) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        begun.append(delivery.read(SubmitTask).task)
        await may_end.wait()
        return
        yield

    async with consuming(bus, handler):
        assert await bus.publish(job("old")) == 1
        await eventually(lambda: begun)
        await bus.declarations.recreate(streams.JOBS, first_sequence=1)
        assert await bus.publish(job("new")) == 1
        await eventually(lambda: begun == ["old", "new"])
        may_end.set()


async def test_lease_of_a_consumer_that_is_there_already_becomes_the_current_one(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        return
        yield

    async def lease_s() -> float | None:
        return (await bus.blobs_context().consumer_info(JOBS.stream, JOBS.name)).config.ack_wait

    for wanted_s in (30.0, streams.SCHEDULER_JOBS.ack_wait_s):
        async with consuming(bus, handler, consumer=replace(JOBS, ack_wait_s=wanted_s)):

            async def declared(wanted_s: float = wanted_s) -> bool:
                return await lease_s() == wanted_s

            await eventually(declared)


async def test_shutdown_returns_unfinished_work_to_the_queue_at_once(bus: Bus) -> None:
    started = asyncio.Event()

    async def stuck(delivery: Delivery) -> AsyncIterator[Outgoing]:
        started.set()
        await asyncio.sleep(60)
        yield  # pyright: ignore

    # It is not the end of its lease, which takes a minute, that brings it back.
    async with consuming(bus, stuck):
        await bus.publish(job("a"))
        await started.wait()
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        attempts.append(delivery.attempt)
        return
        yield

    async with consuming(bus, handler):
        await eventually(lambda: attempts == [2])


async def test_shutdown_returns_what_has_only_just_come(bus: Bus, nats_url: str) -> None:
    bus = await Bus.connect(nats_url, "patient", timings=Timings(drain_timeout_s=60.0))
    sent, seen = 300, set[str]()

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        seen.add(delivery.read(SubmitTask).task)
        return
        yield

    for first in range(0, sent, 20):  # at each shutdown some are handled, some in hand, and some between the server and here
        publishing = [asyncio.create_task(bus.publish(job(f"t{first + each}"))) for each in range(20)]
        async with consuming(bus, handler, slots=64):
            await asyncio.wait(publishing, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*publishing)
    async with consuming(bus, handler, slots=64):
        await eventually(lambda: len(seen) == sent)


async def test_fatal_ends_the_consumer_and_keeps_the_message(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        raise Fatal("GPU is gone")
        yield

    async with consuming(bus, handler) as runner:
        await bus.publish(job("a"))
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(asyncio.shield(runner), 250)
    assert await bus.streams.backlog(streams.JOBS) == 1


async def test_message_that_is_never_answered_is_a_dead_letter_in_the_end(bus: Bus) -> None:
    """It may be what kills every process that takes it."""
    deadly = replace(JOBS, max_deliveries=2, ack_wait_s=1.0)
    taken: list[int] = []

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        taken.append(delivery.attempt)
        raise Fatal("engine died")
        yield

    async def buried() -> bool:
        return await bus.streams.last(streams.FAILED, "failed.jobs.none") is not None

    await bus.publish(job("a"))
    for life in range(3):
        runner = asyncio.create_task(bus.consume(deadly, handler, Slots(1)))
        await (eventually(buried) if life == 2 else asyncio.wait([runner], timeout=250))
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
    assert taken == [1, 2]
    letter = await bus.streams.last(streams.FAILED, "failed.jobs.none")
    assert letter is not None
    assert "delivered 2 times without an answer" in letter.read(DeadLetter).reason


async def test_no_more_messages_are_taken_than_there_are_slots(bus: Bus) -> None:
    running = peak = 0

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05)
        running -= 1
        return
        yield

    for number in range(8):
        await bus.publish(job(f"t{number}"))
    async with consuming(bus, handler, slots=2):

        async def gone() -> bool:
            return await bus.streams.backlog(streams.JOBS) == 0

        await eventually(gone)
    assert peak == 2


def test_pause_of_a_handler_grows_with_its_work_and_not_with_an_outage_under_it() -> None:
    assert (spaced(0.0, 5.0), spaced(0.03, 0.001), spaced(0.03, 0.1)) == (0.0, 0.03, 0.4)
    assert spaced(0.03, 7.0) == 7.5


async def test_lists_that_follow_one_another_are_spaced_and_the_first_does_not_wait(bus: Bus) -> None:
    lists: list[tuple[float, int]] = []

    async def handler(deliveries: Sequence[Delivery]) -> None:
        lists.append((time.monotonic(), len(deliveries)))

    runner = asyncio.create_task(bus.consume_batches(JOBS, handler, max_batch=256, spacing_s=2.0))
    try:
        await bus.publish(job("a"))
        await eventually(lambda: len(lists) == 1)
        await asyncio.gather(*(bus.publish(job(task)) for task in "bcd"))
        await eventually(lambda: sum(count for _, count in lists) == 4)
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)
    assert lists[1][0] - lists[0][0] > 1.8
    assert lists[1][1] == 3


async def test_a_bad_message_in_a_batch_harms_no_other(bus: Bus) -> None:
    handled: list[str] = []

    async def handler(deliveries: object) -> None:
        assert isinstance(deliveries, list)
        tasks = [delivery.read(SubmitTask).task for delivery in deliveries]
        if "bad" in tasks:
            raise Reject("bad one")
        handled.extend(tasks)

    for task in ("a", "bad", "b"):
        await bus.publish(job(task))
    runner = asyncio.create_task(bus.consume_batches(JOBS, handler, max_batch=256))
    try:
        await eventually(lambda: sorted(handled) == ["a", "b"])

        async def buried() -> bool:
            return await bus.streams.backlog(streams.FAILED) == 1 and await bus.streams.backlog(streams.JOBS) == 0

        await eventually(buried)
    finally:
        runner.cancel()
        await asyncio.gather(runner, return_exceptions=True)


async def test_wrong_kind_and_garbage_are_rejected_by_name(bus: Bus) -> None:
    delivery = Delivery("jobs.submit.acme", {"Marlaas-Kind": "other.9"}, b"", 1, 1)
    with pytest.raises(Reject, match=r"other\.9"):
        delivery.read(SubmitTask)
    for body in (b"", b"\xc1", b"{", b"\x81\xa4task\xc3", b"\x93\x01\x02\x03"):
        with pytest.raises(Reject, match="not a submit-task"):
            Delivery("jobs.submit.acme", {}, body, 1, 1).read(SubmitTask)


async def test_plain_json_job_is_understood(bus: Bus) -> None:
    message = SubmitTask.decode(b'{"task": "a", "tenant": "acme", "spec": {"name": "x"}}')
    assert message.spec == {"name": "x"}


async def test_unreadable_value_hides_no_other(bus: Bus) -> None:
    status = ReplicaReport(replica="good", service="env")
    await bus.kv.put(streams.REPLICAS_BUCKET, "env.good", status)
    await bus.publish_raw(streams.value_subject(streams.REPLICAS_BUCKET, "env.bad"), b"garbage", "bad", {})
    assert await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport) == [status]
    async for key, value in bus.kv.watch(streams.REPLICAS_BUCKET, ReplicaReport):
        assert (key, value) == ("env.good", status)
        break


async def test_consumer_ends_even_when_a_library_has_lost_its_cancellation(bus: Bus) -> None:
    handling = asyncio.Event()

    async def handler(deliveries: Sequence[Delivery]) -> None:
        handling.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass  # as asyncio.wait_for may do

    runner = asyncio.create_task(bus.consume_batches(JOBS, handler, max_batch=256))
    await bus.publish(job("a"))
    await handling.wait()
    runner.cancel()
    async with asyncio.timeout(250):
        await asyncio.gather(runner, return_exceptions=True)
    assert runner.cancelled()


async def test_service_waits_while_its_credentials_are_refused_and_goes_on_once_they_are_accepted(tmp_path: Path) -> None:
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
        behind = await Bus.connect(servers.nats_url(wire.port), "behind the wire", timings=timings)
        try:
            wire.silence()
            await eventually(lambda: not behind.is_connected)
            wire.cut()
            wire.speak()
            await eventually(lambda: behind.is_connected)
            assert await behind.publish(job("a")) == 1
        finally:
            await behind.close()


async def test_followers_wait_for_a_server_that_is_slow_to_answer(nats_url: str, bus: Bus) -> None:
    status = TaskStatus(tenant="acme", task="a", name="a", pool="tiny", state="finished", version=1, steps=1, submitted_s=0, updated_s=0)
    await bus.kv.put(streams.TASKS_BUCKET, "a", status)
    await bus.publish(Outgoing(streams.failed("jobs", "a"), status, "failed:a"))
    async with Wire("slow", int(nats_url.rpartition(":")[2])).listening() as wire:
        timings, tasks = Timings(answer_timeout_s=0.5, backoff=Backoff(0.05, 1.6)), TaskStates()
        behind = await Bus.connect(servers.nats_url(wire.port), "behind the wire", timings=timings)
        try:
            wire.silence()
            told = asyncio.gather(
                anext(aiter(behind.streams.follow(streams.FAILED, "failed.>"))),
                anext(aiter(behind.kv.watch(streams.TASKS_BUCKET, TaskStatus))),
                tasks.read(behind),
            )
            finished, _ = await asyncio.wait([told], timeout=2 * timings.answer_timeout_s)
            assert not finished, "none of them gives up"
            wire.speak()
            await asyncio.wait_for(told, timeout=250)
            assert tasks.has_ended("a")
        finally:
            await behind.close()


@pytest.mark.parametrize("url", ["nats://user:secret@host:abc", "http://host:4222", "nats://", ","])
async def test_what_is_no_address_is_said_at_once(url: str) -> None:
    with pytest.raises(Fatal, match=r"is no address of NATS; one looks like .*; correct MARLAAS_NATS_URL") as caught:
        await Bus.connect(url, "lost", until_accepted=True)
    assert "secret" not in str(caught.value)


async def test_connection_that_is_closed_for_good_ends_the_service(nats_url: str) -> None:
    """nats-py does so after errors that it takes for final; whoever runs the service starts it anew."""
    bus = await Bus.connect(nats_url, "closed")
    await bus._connection.client.close()
    with pytest.raises(Fatal, match="NATS has closed the connection"):
        await asyncio.wait_for(bus.wait_fatal(), timeout=250)


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


async def test_bucket_that_seems_empty_for_a_moment_is_read_again(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """nats-py's watcher says that nothing is left when the server has sent what there was and it has not come yet."""
    status = ReplicaReport(replica="one", service="env")
    await bus.kv.put(streams.REPLICAS_BUCKET, "env.one", status)
    honest, looks = KeyValue.watchall, 0

    async def hasty(store: KeyValue, **options: Any) -> KeyValue.KeyWatcher:
        nonlocal looks
        looks += 1
        watcher = await honest(store, **options)
        if looks == 1:
            watcher._updates = asyncio.Queue()
            watcher._updates.put_nowait(None)
        return watcher

    monkeypatch.setattr(KeyValue, "watchall", hasty)
    assert await bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport) == [status]
    assert looks == 2
