"""Streams with as many bytes as they may have: senders wait, nothing is lost, and what may be dropped is the oldest."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import structlog

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots
from common.bus.metrics import REFUSED
from common.errors import QueueFull, Reject, StreamFull
from common.messages import DeadLetter
from common.streams import MIN_STREAM_BYTES, PROMPTS, STREAMS, TURNS, Stream
from tests.support.consuming import as_handler
from tests.support.waiting import eventually

SIZE = 7 * 1024 * 1024
"""Four of these fit into MIN_STREAM_BYTES, five do not."""


def large(subject: str, number: int, size: int = SIZE) -> Outgoing:
    letter = DeadLetter(stage="sample", subject="x", reason="", attempts=1, headers={}, body=b"x" * size, sequence=1)
    return Outgoing(subject, letter, f"{subject}:{number}")


async def config(bus: Bus, stream: Stream):  # type: ignore[no-untyped-def]
    return (await bus.blobs_context().stream_info(stream.name)).config


async def test_every_stream_has_bounds_and_says_what_a_full_one_does(bus: Bus) -> None:
    await bus.declare(streams_bytes=10**9)
    assert sum(each.share for each in (*STREAMS, *streams.BUCKETS)) == pytest.approx(1.0)
    for stream in STREAMS:
        found = await config(bus, stream)
        assert found.max_bytes == max(int(10**9 * stream.share), MIN_STREAM_BYTES)
        assert found.max_msg_size == 8 * 1024 * 1024
        assert found.discard == ("old" if stream.drops_oldest else "new")
    await bus.declare(streams_bytes=0)
    assert (await config(bus, PROMPTS)).max_bytes == int(10**9 * PROMPTS.share), "0 leaves it as it is"
    await bus.declare(streams_bytes=2 * 10**9)
    assert (await config(bus, PROMPTS)).max_bytes == int(2 * 10**9 * PROMPTS.share), "settable"


async def test_full_stream_refuses_at_once_until_there_is_room(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    refused = REFUSED.labels("trajectories")._value.get()
    for number in range(4):
        await bus.publish(large("trajectories.turn.math.a.x", number))
    with structlog.testing.capture_logs() as logs, pytest.raises(StreamFull):
        await asyncio.wait_for(bus.publish(large("trajectories.turn.math.a.x", 4)), timeout=20.0)  # it would be retried for longer
    assert [(entry["event"], entry["subject"]) for entry in logs] == [("stream_full", "trajectories.turn.math.a.x")]
    assert REFUSED.labels("trajectories")._value.get() == refused + 1
    await bus.publish(large("trajectories.turn.math.a.x", 5, size=1024))
    await bus.blobs_context().delete_msg(TURNS.name, 1)
    await bus.publish(large("trajectories.turn.math.a.x", 4))


async def test_handler_waits_for_room_and_every_message_arrives_once(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    for number in range(6):
        await bus.publish(large(f"prompts.sample.tiny.a.{number}", number, size=10))
    runs: list[str] = []
    arrived: list[str] = []

    async def sample(delivery: Delivery) -> AsyncIterator[Outgoing]:
        trajectory = delivery.subject.rpartition(".")[2]
        runs.append(trajectory)
        yield large(f"trajectories.turn.math.a.{trajectory}", 0)

    async def take(delivery: Delivery) -> None:
        arrived.append(delivery.subject.rpartition(".")[2])

    async with asyncio.TaskGroup() as runners:
        running = [runners.create_task(bus.consume(streams.rollout_samples("tiny"), sample, Slots(8)))]
        try:
            await eventually(lambda: len(runs) >= 4 + 2 * (streams.rollout_samples("tiny").max_attempts + 1))
            assert (await bus.blobs_context().stream_info(TURNS.name)).state.messages == 4
            running.append(runners.create_task(bus.consume(streams.env_turns("math"), as_handler(take), Slots(8))))
            await eventually(lambda: len(arrived) >= 6)
        finally:
            for one in running:
                one.cancel()
    assert sorted(arrived) == [str(number) for number in range(6)]
    assert (await bus.blobs_context().stream_info(streams.FAILED.name)).state.messages == 0


async def test_stream_that_gives_up_subjects_keeps_its_messages_and_another_takes_them(bus: Bus) -> None:
    """As on a server where requests to versions and prompts of training were in one stream."""
    context = bus.blobs_context()
    await context.delete_stream(streams.REQUESTS.name)
    await context.delete_stream(PROMPTS.name)
    together = replace(PROMPTS, subjects=("prompts.>", "filling.PROMPTS"))
    await bus.declare([together])
    await bus.declarations.declare_consumer(replace(streams.rollout_serves("tiny"), stream=PROMPTS.name))
    await bus.publish(large(streams.sample("tiny", "a", "0-0"), 0, size=10))
    await bus.publish(large(streams.serve("tiny", "a", "r"), 1, size=10))

    await bus.declare()
    await bus.declarations.declare_consumer(streams.rollout_serves("tiny"))
    await bus.publish(large(streams.serve("tiny", "a", "r2"), 2, size=10))

    assert await bus.streams.subjects(PROMPTS, "prompts.sample.>") == {streams.sample("tiny", "a", "0-0"): 1}
    assert await bus.streams.subjects(streams.REQUESTS) == {streams.serve("tiny", "a", "r2"): 1}


async def test_full_stream_of_events_drops_the_oldest(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    for number in range(6):
        await bus.publish(large(f"events.acme.t{number}", number))
    state = (await bus.blobs_context().stream_info(streams.EVENTS.name)).state
    assert (state.messages, state.first_seq, state.last_seq) == (4, 3, 6)


async def test_stream_that_is_nearly_full_is_bounded_at_a_later_start(bus: Bus) -> None:
    await bus.declare()
    for number in range(4):
        await bus.publish(large("trajectories.turn.math.a.x", number))
    with structlog.testing.capture_logs() as logs:
        await bus.declare(streams_bytes=1)
    assert [entry["stream"] for entry in logs if entry["event"] == "bound_postponed"] == ["TURNS"]
    assert (await bus.blobs_context().stream_info(TURNS.name)).state.messages == 4


async def test_bounds_that_the_store_has_no_room_for_are_reported(bus: Bus) -> None:
    with structlog.testing.capture_logs() as logs:
        await bus.declare(streams_bytes=10**16)
    [entry] = [entry for entry in logs if entry["event"] == "streams_not_bounded"]
    assert entry["streams"] == sorted([*(stream.name for stream in STREAMS), *(f"KV_{bucket.name}" for bucket in streams.BUCKETS)])
    assert (entry["bytes"], entry["reason"]) == (10**16, "insufficient storage resources available")


async def test_message_that_is_larger_than_its_stream_takes_is_rejected(bus: Bus) -> None:
    await bus.declare([Stream("SMALL", ("small.>",), max_message_bytes=2_000)])
    await bus.publish(large("small.a", 0, size=1_000))
    with pytest.raises(Reject, match="larger than its stream takes"):
        await bus.publish(large("small.a", 1, size=3_000))


async def test_as_many_jobs_as_may_wait_is_another_answer(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    for number in range(streams.MAX_WAITING_JOBS):
        await bus.publish(large("jobs.cancel.acme", number, size=10))
    with pytest.raises(QueueFull):
        await bus.publish(large("jobs.cancel.acme", 1_000, size=10))
    await bus.publish(large("jobs.cancel.globex", 0, size=10))
