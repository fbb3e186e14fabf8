"""Handles executors' answers to orders: updates rows, slices, measured moves and the clocks of pools."""

from collections.abc import Sequence

import structlog

from common.accelerators import ExecutorState, Tier
from common.bus import Delivery
from common.errors import Reject, Retry
from common.messages import ExecutorReport, LeaseDone
from common.pools import Place
from scheduler_svc.accelerators import clocks
from scheduler_svc.accelerators.booking import Use, book_ended
from scheduler_svc.accelerators.deployed import Deployed
from scheduler_svc.accelerators.orders import ParkOrder, end_open, order_park
from scheduler_svc.accelerators.queries import executors, slices
from scheduler_svc.accelerators.queries.executors import Fault
from scheduler_svc.accelerators.queries.slices import OpenSlice
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.base.states import SliceEnd
from scheduler_svc.base.transaction import Transaction

BACK_OFF_S = 30.0
"""Seconds until retry after the first failed wake; doubles with each further failure."""
MAX_BACK_OFF_S = 3600.0
MAX_AHEAD_S = 60.0
"""Maximum seconds by which an executor's clock may be ahead of NATS's."""
MAX_UNKNOWN_EPOCHS = 1_000_000
"""Maximum by which an answer's epoch may exceed the recorded one: a PostgreSQL restored from a backup lacks the newest orders."""

DIED_WAKING = "its process died while it woke"

log = structlog.get_logger()


async def executor_answered(tx: Transaction, deployed: Deployed, done: LeaseDone, now_s: float) -> None:
    """Record an executor's answer and its effects on the executor's slice. Ignored if a newer answer of the executor is recorded.

    Raises: Reject if no such executor is deployed, or the order was never given; Retry if the leader has not recorded the accelerator yet.
    """
    place, now_ms = _place(deployed, done, now_s), round(1000 * now_s)
    epoch = await executors.locked_epoch(tx.connection, done.accelerator)
    if epoch is None:
        raise Retry(f"accelerator {done.accelerator} is not recorded yet")
    if done.epoch > epoch:
        if done.state is ExecutorState.AWAKE or done.epoch > epoch + MAX_UNKNOWN_EPOCHS:
            raise Reject(f"{done.executor} answers an order with epoch {done.epoch}; the newest of {done.accelerator} has {epoch}")
        await executors.raise_epoch(tx.connection, done.accelerator, done.epoch)
    if not await executors.record_answer(tx.connection, done):
        log.info("answer_outdated", executor=done.executor, epoch=done.epoch, state=str(done.state))
        return
    if done.move_s is not None:
        await executors.add_move(tx.connection, done, done.move_s)
    at_ms = min(now_ms, round(1000 * done.at_s))
    if done.state is ExecutorState.AWAKE:
        await _woke(tx, place, done, at_ms, max(epoch, done.epoch))
        return
    use = Use(done.served, done.busy_ms, done.score_ms) if done.state is ExecutorState.PARKED else Use()
    ended = await _end_own(tx, place, done, ENDS[done.state], now_ms)
    if done.state is ExecutorState.PARKED:
        await executors.parked(tx.connection, done.accelerator, done.executor, done.epoch)
        if done.move_s is not None:
            await slices.extend(tx.connection, done.accelerator, done.executor, done.epoch, at_ms - round(1000 * done.move_s))
        await slices.parked(tx.connection, done.accelerator, done.executor, done.epoch, done.tier, at_ms)
    elif done.state is ExecutorState.FAULTY:
        await _failed(tx, done, now_ms)
    elif done.state is ExecutorState.COLD and done.failure:
        await _record_predecessors_death(tx, done, ended, done.failure, now_ms)
    await book_ended(tx, done.accelerator, done.executor, place.pool, until=done.epoch, use=use)


async def wake_reported(tx: Transaction, deployed: Deployed, report: ExecutorReport, at_s: float, now_s: float) -> None:
    """Record a wake at `at_s` from an executor's report, because its answer was lost. The duration of the move is unknown.

    Raises: as `executor_answered`.
    """
    log.error("answer_lost", executor=report.executor, epoch=report.epoch)
    who = report.model_dump(include={"accelerator", "executor", "pool", "replica", "epoch", "state", "device_bytes", "host_bytes"})
    await executor_answered(tx, deployed, LeaseDone(**who, from_tier=report.tier, tier=report.tier, at_s=at_s), now_s)


ENDS = {ExecutorState.PARKED: SliceEnd.FENCED, ExecutorState.COLD: SliceEnd.DIED, ExecutorState.FAULTY: SliceEnd.FAULTY}
"""State in an executor's answer → how its open slice ended."""


def _place(deployed: Deployed, done: LeaseDone, now_s: float) -> Place:
    place = deployed.places.get((done.accelerator, done.executor))
    if place is None or place.pool != done.pool:
        raise Reject(f"no executor {done.executor} of pool {done.pool} is on accelerator {done.accelerator}")
    if done.state in (ExecutorState.WAKING, ExecutorState.PARKING):
        raise Reject(f"{done.executor} answers that it is {done.state}, which ends no order")
    if done.at_s > now_s + MAX_AHEAD_S:
        raise Reject(f"{done.executor} answers {done.at_s - now_s:.0f} s after now; its clock is wrong")
    return place


async def _woke(tx: Transaction, place: Place, done: LeaseDone, at_ms: int, epoch: int) -> None:
    if await slices.begin(tx.connection, done.accelerator, done.epoch, done.executor, at_ms):
        await executors.forget_faults(tx.connection, done.accelerator, done.executor)
        await clocks.start(tx, done.executor, place.pool, at_ms)
        return
    present = await slices.open_slice(tx.connection, done.accelerator)
    if present is not None and present.executor == done.executor and present.epoch >= done.epoch:
        return  # its wake is already known from a report or another answer, or a newer wake order is on its way to it
    log.warning("woke_without_slice", executor=done.executor, epoch=done.epoch)
    await order_park(tx, done.accelerator, ParkOrder(done.executor, Tier.DEVICE), above=epoch)


async def _end_own(tx: Transaction, place: Place, done: LeaseDone, how: SliceEnd, now_ms: int) -> OpenSlice | None:
    """End the executor's open slice, unless the slice is newer than the answer; returns the ended slice, or None if none was ended."""
    present = await slices.open_slice(tx.connection, done.accelerator)
    if present is not None and present.executor == place.executor and present.epoch <= done.epoch:
        log.warning("slice_lost", executor=done.executor, epoch=present.epoch, ended=str(how), failure=done.failure)
        await end_open(tx, done.accelerator, present, how, now_ms, asked=False)
        return present
    return None


async def _record_predecessors_death(tx: Transaction, done: LeaseDone, ended: OpenSlice | None, cause: str, now_ms: int) -> None:
    """Record why an executor's previous process died, as its new process reports; silence may have ended the slice already."""
    reason = f"{DIED_WAKING}: {cause}"
    await executors.explain_fault(tx.connection, done.accelerator, done.executor, DIED_WAKING, reason)
    if ended is not None and not ended.has_woken:
        await died_waking(tx, done.accelerator, done.executor, now_ms, reason)


async def died_waking(tx: Transaction, accelerator: str, executor: str, now_ms: int, reason: str = DIED_WAKING) -> None:
    """Record that a process died while waking. The first death may be a kill, so the next wake may be immediate; later deaths delay it."""
    past = await executors.failures(tx.connection, accelerator, executor)
    log.error("executor_faulty", executor=executor, reason=reason)
    retry_ms = now_ms + (round(1000 * pause_s(past - 1)) if past else 0)
    await executors.record_fault(tx.connection, accelerator, executor, Fault(reason, retry_ms, needs_room=False))


async def _failed(tx: Transaction, done: LeaseDone, now_ms: int) -> None:
    fault = next_attempt(done, await executors.failures(tx.connection, done.accelerator, done.executor), now_ms)
    log.error("executor_faulty", executor=done.executor, reason=fault.reason, retry_in_s=(fault.retry_ms - now_ms) / 1000)
    await executors.record_fault(tx.connection, done.accelerator, done.executor, fault)


def next_attempt(done: LeaseDone, past: int, now_ms: int) -> Fault:
    """Fault of a failed wake, with the time of the next attempt. `past`: earlier failures since the executor last woke.

    After a first failure, if it was for lack of memory, the retry is immediate, with all other executors parked one tier deeper.
    """
    reason, is_memory = done.failure or "it could not wake, and did not say why", bool(done.lacks_memory)
    if is_memory and not past:
        return Fault(reason, now_ms, needs_room=True)
    return Fault(reason, now_ms + round(1000 * pause_s(past - is_memory)), needs_room=False)


def pause_s(past: int) -> float:
    """Seconds until the next attempt to wake. `past`: earlier failures, each of which doubles the pause up to MAX_BACK_OFF_S."""
    return min(MAX_BACK_OFF_S, BACK_OFF_S * 2.0 ** min(past, 30))


async def handle_lease_answers(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    answers = [delivery.read(LeaseDone) for delivery in deliveries]
    async with context.transaction() as tx:
        for done in sorted(answers, key=lambda one: (one.accelerator, one.epoch, one.at_s)):  # locks accelerators in one order
            await executor_answered(tx, context.deployed, done, context.bus.clock.now_s())
    context.wake_slices()
