"""Each outcome of a handler, and what becomes of the message, against a real nats-server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from common import streams
from common.bus import Bus, Delivery, Outgoing, Slots, batch_interval_s, handling, metrics
from common.bus.handling import Outcomes
from common.errors import Fatal, HandedBack, Reject, Retry, Unavailable
from common.messages import ControlTask, DeadLetter, SubmitTask
from tests.support.buses import message_on
from tests.support.consuming import JOBS, as_handler, consuming, drained, job
from tests.support.waiting import at_work, eventually


async def test_message_is_acknowledged_after_its_results_are_published(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        task = delivery.read(SubmitTask).task
        yield Outgoing(streams.checked(task), ControlTask(task=task, tenant="acme"), f"out:{task}")

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        await drained(bus)
    assert await bus.streams.backlog(streams.TURNS) == 1


async def test_same_message_id_is_stored_once(bus: Bus) -> None:
    first, second = await bus.publish(job("a")), await bus.publish(job("a"))
    assert first == second
    assert await bus.streams.backlog(streams.JOBS) == 1


async def test_rejected_message_becomes_a_dead_letter_with_its_reason(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> None:
        raise Reject("no such thing")

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        letter = (await message_on(bus, streams.FAILED, "failed.jobs.none")).read(DeadLetter)
        assert letter.reason == "no such thing"
        assert letter.subject == "jobs.submit.acme.a"
        assert SubmitTask.decode(letter.body).task == "a"
        await drained(bus)


async def test_replica_that_hands_back_a_message_gets_it_again_only_when_it_takes_some(bus: Bus) -> None:
    attempts: list[tuple[str, int]] = []
    slots, closed = Slots(8), asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        attempts.append((delivery.read(SubmitTask).task, delivery.attempt))
        if len(attempts) == 2:
            await closed.wait()
            raise HandedBack("parked")

    async with at_work(bus.consume(JOBS, as_handler(handler), slots)):
        await bus.publish(job("a"))
        await drained(bus)
        await bus.publish(job("b"))
        await eventually(lambda: len(attempts) == 2)
        slots.close()
        closed.set()
        await asyncio.sleep(0.5)
        assert attempts == [("a", 1), ("b", 1)]
        slots.open()
        await drained(bus)
    assert attempts[2:] == [("b", 2)]


async def test_no_message_is_requested_while_slots_are_closed(bus: Bus) -> None:
    slots, taken = Slots(8), asyncio.Event()
    slots.close()

    async def handler(delivery: Delivery) -> None:
        taken.set()

    async with at_work(bus.consume(JOBS, as_handler(handler), slots)):
        await bus.publish(job("a"))
        slots.take()
        slots.release()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(taken.wait(), 0.5)
        assert slots.free == 0
        slots.open()
        await taken.wait()
        await drained(bus)


async def test_retried_message_is_redelivered_and_others_are_not_held_up(bus: Bus) -> None:
    seen: list[tuple[str, int]] = []

    async def handler(delivery: Delivery) -> None:
        task = delivery.read(SubmitTask).task
        seen.append((task, delivery.attempt))
        if task == "bad" and delivery.attempt < 3:
            raise Retry("not yet", delay_s=0.05)

    await bus.publish(job("bad"))
    await bus.publish(job("good"))
    async with consuming(bus, handler):
        await eventually(lambda: ("bad", 3) in seen)
    assert seen.index(("good", 1)) < seen.index(("bad", 2))


async def test_message_that_is_handed_back_is_redelivered_and_is_no_failed_attempt(bus: Bus) -> None:
    """A replica that is parked again and again fails no message."""
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) <= JOBS.max_attempts + 1:
            raise HandedBack("parked", delay_s=0.01)

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        await drained(bus)
    assert len(attempts) == JOBS.max_attempts + 2
    assert await bus.streams.backlog(streams.FAILED) == 0


async def test_message_that_was_handed_back_may_fail_as_often_as_any_other(bus: Bus) -> None:
    """As many parks as there are deliveries of a message cost a task nothing, nor the first failure after them."""
    bounded, attempts = replace(JOBS, max_deliveries=JOBS.max_attempts + 1), list[int]()

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) <= bounded.max_deliveries:
            raise HandedBack("parked", delay_s=0.01)
        raise Retry("the device is full", delay_s=0.01)

    async with consuming(bus, handler, consumer=bounded):
        await bus.publish(job("a"))
        letter = await message_on(bus, streams.FAILED, "failed.jobs.none")
    assert letter.read(DeadLetter).reason == "gave up after 3 attempts: the device is full"
    assert len(attempts) == bounded.max_deliveries + JOBS.max_attempts


async def test_message_that_fails_in_each_process_ends_after_the_maximum_of_deliveries(bus: Bus, nats_url: str) -> None:
    """What another process counted is unknown to the next one. Each fails once, and is ended in its second attempt."""
    bounded, attempts = replace(JOBS, max_attempts=2, max_deliveries=4), list[int]()

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt % 2:
            raise Retry("not yet", delay_s=0.01)
        await asyncio.Event().wait()

    await bus.publish(job("a"))
    for ended in (2, 4):
        async with await Bus.connect(nats_url, f"process-{ended}") as other, consuming(other, handler, consumer=bounded):
            await eventually(lambda: len(attempts) == ended)  # noqa: B023
    async with consuming(bus, handler, consumer=bounded):
        letter = await message_on(bus, streams.FAILED, "failed.jobs.none")
    assert attempts == [1, 2, 3, 4]
    assert "delivered 4 times without an answer" in letter.read(DeadLetter).reason


async def test_no_attempt_is_counted_while_a_server_is_unavailable(bus: Bus) -> None:
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) <= JOBS.max_attempts + 1:
            raise Unavailable("PostgreSQL is unavailable")

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        await drained(bus)
    assert attempts == [1] * (JOBS.max_attempts + 2)
    assert await bus.streams.backlog(streams.FAILED) == 0


async def test_bug_in_handler_is_a_dead_letter_after_the_last_attempt(bus: Bus) -> None:
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        raise ZeroDivisionError("oops")

    async with consuming(bus, handler):
        await bus.publish(job("a"))
        letter = await message_on(bus, streams.FAILED, "failed.jobs.none")
    assert letter.read(DeadLetter).reason == "ZeroDivisionError: oops"
    assert attempts == [1, 2, 3]


async def test_fatal_ends_the_consumer_and_keeps_the_message(bus: Bus) -> None:
    async def handler(delivery: Delivery) -> None:
        raise Fatal("GPU is gone")

    async with consuming(bus, handler) as runner:
        await bus.publish(job("a"))
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(asyncio.shield(runner), 250)
    assert await bus.streams.backlog(streams.JOBS) == 1


async def test_message_that_is_never_answered_is_a_dead_letter_in_the_end(bus: Bus) -> None:
    """It may be what kills every process that takes it."""
    deadly = replace(JOBS, max_deliveries=2, ack_wait_s=1.0)
    taken: list[int] = []

    async def handler(delivery: Delivery) -> None:
        taken.append(delivery.attempt)
        raise Fatal("engine died")

    await bus.publish(job("a"))
    for _ in range(2):
        async with consuming(bus, handler, slots=1, consumer=deadly) as runner:
            await asyncio.wait([runner], timeout=250)
    async with consuming(bus, handler, slots=1, consumer=deadly):
        letter = await message_on(bus, streams.FAILED, "failed.jobs.none")
    assert taken == [1, 2]
    assert "delivered 2 times without an answer" in letter.read(DeadLetter).reason


async def test_no_more_messages_are_taken_than_there_are_slots(bus: Bus) -> None:
    running = peak = 0

    async def handler(delivery: Delivery) -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.05)
        running -= 1

    for number in range(8):
        await bus.publish(job(f"t{number}"))
    async with consuming(bus, handler, slots=2):
        await drained(bus)
    assert peak == 2


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


def test_pause_of_a_handler_grows_with_its_work_and_not_with_an_outage_under_it() -> None:
    assert (batch_interval_s(0.0, 5.0), batch_interval_s(0.03, 0.001), batch_interval_s(0.03, 0.1)) == (0.0, 0.03, 0.4)
    assert batch_interval_s(0.03, 7.0) == 7.5


async def test_lists_that_follow_one_another_are_spaced_and_the_first_does_not_wait(bus: Bus) -> None:
    lists: list[tuple[float, int]] = []

    async def handler(deliveries: Sequence[Delivery]) -> None:
        lists.append((time.monotonic(), len(deliveries)))

    async with at_work(bus.consume_batches(JOBS, handler, max_batch=256, spacing_s=2.0)):
        await bus.publish(job("a"))
        await eventually(lambda: len(lists) == 1)
        await asyncio.gather(*(bus.publish(job(task)) for task in "bcd"))
        published_s = time.monotonic()
        await eventually(lambda: sum(count for _, count in lists) == 4)
    assert lists[1][0] - lists[0][0] > 1.8
    assert lists[1][1] == 3 or lists[1][0] < published_s, "one list has all that came before it"


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
    async with at_work(bus.consume_batches(JOBS, handler, max_batch=256)):
        await eventually(lambda: sorted(handled) == ["a", "b"])
        await drained(bus)
    assert await bus.streams.backlog(streams.FAILED) == 1


async def test_pasts_of_messages_are_bounded_and_the_oldest_goes_first() -> None:
    outcomes, messages = Outcomes(kept=2), [delivered(sequence) for sequence in (1, 2, 3)]
    for message in messages:
        assert outcomes.failed(JOBS, message) == 1
    assert [outcomes.of(JOBS, message).failed for message in messages] == [0, 1, 1]
    assert outcomes.of(replace(JOBS, name="another"), messages[2]).failed == 0
    assert outcomes.failed(JOBS, messages[1]) == 2
    outcomes.forget(JOBS, messages[1])
    assert (outcomes.of(JOBS, messages[1]).failed, len(outcomes)) == (0, 1)


def delivered(sequence: int) -> Msg:
    """A message as nats-py gives it for a delivery of JetStream."""
    return Msg(
        Client(), subject="jobs.submit.acme", reply=f"$JS.ACK.JOBS.scheduler-jobs-acme.1.{sequence}.{sequence}.1700000000000000000.0"
    )


async def test_message_that_found_no_memory_is_retried_later_as_no_fault_of_its_handler(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) < 3:
            raise MemoryError

    monkeypatch.setattr(handling, "MEMORY_DELAY_S", 0.1)
    counted = {outcome: metrics.HANDLED.labels(JOBS.stage, outcome) for outcome in ("retried", "failed")}
    before = {outcome: count._value.get() for outcome, count in counted.items()}  # pyright: ignore[reportPrivateUsage]
    async with consuming(bus, handler):
        await bus.publish(job("a"))
        await drained(bus)
    after = {outcome: count._value.get() - before[outcome] for outcome, count in counted.items()}  # pyright: ignore[reportPrivateUsage]
    assert (len(attempts), after) == (3, {"retried": 2.0, "failed": 0.0})
