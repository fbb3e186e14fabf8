"""Faults of messages: duplicated, late, reordered, truncated, garbage."""

from collections.abc import Callable
from contextlib import suppress

from nats.js.errors import APIError

from common import streams
from common.bus import Bus, Delivery
from common.streams import KIND_HEADER, Stream
from tests.chaos.target import Target

MAX_MESSAGES = 20
MIN_DELAY_S, MAX_DELAY_S = 0.5, 5.0
QUEUES = (streams.PROMPTS, streams.TURNS, streams.BATCHES)
"""Work queues, whose messages are removed and republished later. Not SCORED: the database names its sequences."""
KINDS: dict[str, Callable[[str], str]] = {
    "open-group.1": lambda task: streams.open_group("reasoning_gym", task, 0),
    "check-environment.1": lambda task: streams.check("reasoning_gym", task),
    "sample-turns.1": lambda task: streams.sample("tiny", task, "0-0"),
    "turns-sampled.1": lambda task: streams.turn("reasoning_gym", task, "0-0"),
    "environment-checked.1": streams.checked,
    "trajectories-scored.1": lambda task: streams.scored(task, "0-0"),
    "train-batch.1": lambda task: streams.batch("tiny", task),
    "weight-updated.1": lambda task: streams.weight_updated("tiny", task),
    "submit-task.1": lambda _: streams.job("submit", "acme"),
    "dead-letter.1": lambda task: streams.failed("train", task),
}


async def duplicate(target: Target) -> None:
    """Republish stored messages under other ids, in another order."""
    async with target.bus() as bus:
        for stream in (*streams.IN_FLIGHT, streams.WEIGHTS):
            for stored in await _some(target, bus, stream):
                await _publish(target, bus, stored, stored.body)


async def truncate(target: Target) -> None:
    """Publish the first half, or less, of stored messages, with all their headers."""
    async with target.bus() as bus:
        for stream in (*streams.IN_FLIGHT, streams.WEIGHTS):
            for stored in await _some(target, bus, stream):
                await _publish(target, bus, stored, stored.body[: target.random.randint(0, len(stored.body) // 2)])


async def delay(target: Target) -> None:
    """Remove pending messages of a queue, and republish them later in another order."""
    async with target.bus() as bus:
        taken: list[Delivery] = []
        for stream in QUEUES:
            for stored in await _some(target, bus, stream):
                with suppress(APIError):  # a consumer was faster
                    await bus.blobs_context().delete_msg(stream.name, stored.sequence)
                    taken.append(stored)
        await target.pass_time(MIN_DELAY_S, MAX_DELAY_S)
        target.random.shuffle(taken)
        for stored in taken:
            await _publish(target, bus, stored, stored.body)


async def garbage(target: Target, tasks: list[str]) -> None:
    """Publish bytes that are no message on every subject with a reader, for every task."""
    async with target.bus() as bus:
        for task in tasks:
            for kind, subject in KINDS.items():
                body = target.random.randbytes(target.random.randint(0, 200))
                await bus.publish_raw(subject(task), body, f"garbage:{target.random.random()}", {KIND_HEADER: kind})


async def _some(target: Target, bus: Bus, stream: Stream) -> list[Delivery]:
    """The last message of some subjects, in an order that the seed decides."""
    subjects = sorted(await bus.streams.subjects(stream))
    chosen = target.random.sample(subjects, min(len(subjects), MAX_MESSAGES))
    found = [await bus.streams.last(stream, subject) for subject in chosen]
    return [stored for stored in found if stored is not None]


async def _publish(target: Target, bus: Bus, stored: Delivery, body: bytes) -> None:
    headers = {name: value for name, value in stored.headers.items() if not name.startswith("Nats-")}
    await bus.publish_raw(stored.subject, body, f"repeated:{stored.sequence}:{target.random.random()}", headers)
