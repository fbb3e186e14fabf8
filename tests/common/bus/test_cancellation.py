"""A cancellation that comes in one turn of the event loop with the server's answer ends the runner: Python's `wait_for` would lose it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery
from common.messages import ReplicaReport
from common.resilience.event_loop import cancellation_kept
from tests.support.consuming import JOBS, job

Call = Callable[[Bus], Awaitable[object]]
REPORT = ReplicaReport(replica="one", service="env")


async def heard(bus: Bus) -> None:
    async with bus.requests.listening("events.acme.>"):
        pass


CALLS: dict[str, Call] = {
    "publish": lambda bus: bus.publish(job("a")),
    "set a value": lambda bus: bus.kv.put(streams.REPLICAS_BUCKET, "env.one", REPORT),
    "read a value": lambda bus: bus.kv.get(streams.REPLICAS_BUCKET, "env.one", ReplicaReport),
    "read a bucket": lambda bus: bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport),
    "read a stream": lambda bus: bus.streams.backlog(streams.JOBS),
    "look at a queue": lambda bus: bus.streams.queue(JOBS),
    "look at own jobs": lambda bus: bus.own_jobs.waiting(),
    "declare a consumer": lambda bus: bus.declarations.declare_consumer(JOBS),
    "read the clock": lambda bus: bus.clock.read(),
    "list blobs": lambda bus: Blobs(bus).usage(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_cancellation_that_comes_with_an_answer_ends_the_runner(bus: Bus, call: Call) -> None:
    await ends_though_cancelled_with_an_answer(bus, for_ever(bus, call))


async def test_cancellation_that_comes_with_the_answer_to_a_ping_ends_the_runner(bus: Bus) -> None:
    runner, pongs = asyncio.create_task(for_ever(bus, heard)), bus._connection.client._pongs  # pyright: ignore[reportPrivateUsage]
    while not pongs:
        await asyncio.sleep(0)
    pongs[0].add_done_callback(lambda _: runner.cancel())  # pyright: ignore[reportUnknownLambdaType]
    await ends(runner)


async def test_cancellation_while_nats_py_writes_ends_the_runner(bus: Bus) -> None:
    client = bus._connection.client  # pyright: ignore[reportPrivateUsage]
    read, client._flush_queue = client._flush_queue, asyncio.Queue(1)  # pyright: ignore[reportPrivateUsage]
    runner = asyncio.create_task(for_ever(bus, lambda bus: bus.requests.send("cancels.none", REPORT)))
    while not client._flush_queue.full():  # pyright: ignore[reportPrivateUsage]
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)  # it waits for room there
    runner.cancel()
    await ends(runner)
    client._flush_queue = read  # pyright: ignore[reportPrivateUsage]


async def test_cancellation_that_a_wait_with_a_deadline_loses_is_raised_at_the_end_of_the_block() -> None:
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        with cancellation_kept():
            await asyncio.wait_for(answer, 60)

    runner = asyncio.create_task(waits())
    await asyncio.sleep(0)
    answer.add_done_callback(lambda _: runner.cancel())  # pyright: ignore[reportUnknownLambdaType]
    answer.set_result(None)
    await ends(runner)


async def test_consumer_ends_though_its_handler_is_cancelled_with_an_answer(bus: Bus) -> None:
    handling = asyncio.Event()

    async def handler(deliveries: Sequence[Delivery]) -> None:
        handling.set()
        await bus.kv.get(streams.REPLICAS_BUCKET, "env.one", ReplicaReport)

    await bus.kv.get(streams.REPLICAS_BUCKET, "env.one", ReplicaReport)  # the bucket is looked up once
    runner = asyncio.create_task(bus.consume_batches(JOBS, handler, max_batch=256))
    await bus.publish(job("a"))
    await handling.wait()
    await cancelled_with_an_answer(bus, runner)
    await ends(runner)


async def test_cancellation_that_was_taken_note_of_before_does_not_count() -> None:
    async def cleans_up() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with cancellation_kept():
                await asyncio.sleep(0)
        return "cleaned"

    runner = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    runner.cancel()
    assert await runner == "cleaned"


async def for_ever(bus: Bus, call: Call) -> None:
    while True:
        await call(bus)


async def ends_though_cancelled_with_an_answer(bus: Bus, work: Coroutine[Any, Any, None]) -> None:
    runner = asyncio.create_task(work)
    await cancelled_with_an_answer(bus, runner)
    await ends(runner)


async def cancelled_with_an_answer(bus: Bus, runner: asyncio.Task[None]) -> None:
    """Cancels the runner in the turn of the event loop in which the answer to its request is there."""
    awaited = bus._connection.client._resp_map  # pyright: ignore[reportPrivateUsage]
    while not awaited:
        await asyncio.sleep(0)
    next(iter(awaited.values())).add_done_callback(lambda _: runner.cancel())  # pyright: ignore[reportUnknownLambdaType]


async def ends(runner: asyncio.Task[Any]) -> None:
    await asyncio.wait([runner], timeout=60)
    has_ended = runner.cancelled()
    runner.cancel()
    assert has_ended
