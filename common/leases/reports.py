"""Reports of an executor at each change, and the backlog of its queues.

The scheduler decides with these, so relevant changes are reported within hundredths of a second: the state, the running operation,
whether messages wait, and about how many. The cost of checking is bounded: a parked executor checks less often.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from common import streams
from common.accelerators import ExecutorState, Load
from common.bus import Bus, Queue
from common.errors import Retry
from common.homes import BEGUN, Ages, Queues
from common.leases.context import ExecutorContext
from common.leases.reconciler import LeaseReconciler
from common.messages import ExecutorReport, ReplicaReport
from common.periodic import run_forever
from common.resilience.event_loop import is_set_within
from common.streams import Consumer

AWAKE_LOOK_S = 0.02
"""Seconds between checks of the running operations."""
QUEUE_LOOK_S = 0.05
"""Seconds between checks of the queues while awake."""
PARKED_LOOK_S = 0.2
"""Seconds between checks of the queues while parked: each costs half a millisecond of processor time that others need."""
MIN_SPACING_S = 0.02
REPORT_S = 1.0
"""Seconds between reports without a change."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Reading:
    """Queues that an executor reads, its pool's first."""

    consumers: Sequence[Consumer]
    siblings: Queues | None = None
    """None if its pool's replicas have no queues of their own."""


class Waiting:
    """Time since which this executor's work has waited: its oldest message that is not started, or its frozen operations."""

    def __init__(self) -> None:
        self._frozen_s: float | None = None

    def since_s(self, now_s: float, *, oldest_s: float | None, frozen: bool) -> float | None:
        """NATS's time since when work waits; None without work. Frozen operations wait from the moment at which they were frozen."""
        self._frozen_s = (now_s if self._frozen_s is None else self._frozen_s) if frozen else None
        return min((each for each in (oldest_s, self._frozen_s) if each is not None), default=None)


class Backlog:
    """Messages in an executor's queues that no live process has started."""

    def __init__(
        self,
        bus: Bus,
        consumers: Sequence[Consumer],
        load: Callable[[], Load] = Load,
        siblings: Queues | None = None,
    ) -> None:
        self._bus = bus
        self._own = consumers
        self._siblings = siblings
        self._load = load
        self._elsewhere: dict[str, int] = {}
        """Messages that other replicas have started, by queue."""
        self._ages: dict[str, Ages] = {}
        """Ages by queue, so that the ages in other queues do not change when a queue is taken over or returned."""
        self._declared: set[Consumer] = set()
        self.is_declared = asyncio.Event()
        """Set once the consumer of its first queue is declared."""
        self.ready = 0
        """Messages found by the last check."""

    async def declare(self) -> None:
        """Declare the consumers. NATS reports no backlog without a consumer, and a process that never woke has not declared its own.

        All are declared concurrently, so that none waits for one that NATS does not permit.
        """
        async with asyncio.TaskGroup() as runners:
            for consumer in self._own:
                runners.create_task(self._declare(consumer))

    async def _declare(self, consumer: Consumer) -> None:
        await self._bus.declarations.declare_when_permitted(consumer)
        self._declared.add(consumer)
        if consumer == self._own[0]:
            self.is_declared.set()

    @property
    def oldest_s(self) -> float | None:
        """NATS's time at which the oldest waiting message arrived; None without any."""
        return min((each.oldest_s for each in self._ages.values() if each.oldest_s is not None), default=None)

    @property
    def begun_by_queue(self) -> dict[str, int]:
        """Number of messages that this process has started, by `name_of` the queue; messages from siblings' queues are included.

        Only the total is known (`Load.messages`): it is attributed to the messages held, queue after queue, the pool's first.
        """
        begun, found = self._load().messages, dict[str, int]()
        others = [] if self._siblings is None else [each for each in self._siblings.consumers if self._bus.held(each)]
        for consumer in [*self._own, *others]:
            held = self._bus.held(consumer)
            counted = held if begun is None else min(held, begun)
            begun = None if begun is None else begun - counted
            found[name_of(consumer)] = found.get(name_of(consumer), 0) + counted
        return found

    async def look(self) -> None:
        """Check the queues. Raises: Unavailable."""
        consumers = [each for each in self._own if each in self._declared]
        consumers += [] if self._siblings is None else self._siblings.taken_over
        queues: dict[str, list[Queue]] = {}
        for consumer in consumers:
            queues.setdefault(name_of(consumer), []).append(await self._bus.streams.queue(consumer))
        begun, now_s, ready = self.begun_by_queue, self._bus.clock.now_s(), 0
        self._ages = {name: self._ages[name] if name in self._ages else self._first_ages(name) for name in queues}
        for name, found in queues.items():
            # Delivered, and started by no live process: kept for a later wake, handed back, or their receiver has died. Without these a
            # killed executor's message would never count as waiting, and no executor would wake for it.
            unacknowledged = sum(queue.unacknowledged for queue in found)
            kept = max(0, unacknowledged - begun.get(name, 0) - self._elsewhere.get(name, 0))
            pending, delivered = sum(queue.pending for queue in found), sum(queue.delivered for queue in found)
            ready += pending + kept
            self._ages[name].look(now_s, pending=pending, kept=kept, delivered=delivered)
        self.ready = ready

    def _first_ages(self, name: str) -> Ages:
        """Ages with which to start a queue: for one that was taken over, those observed before."""
        if self._siblings is not None:
            for consumer in self._siblings.taken_over:
                if name_of(consumer) == name:
                    return self._siblings.ages(consumer)
        return Ages()

    async def look_elsewhere(self, service: str, pool: str, replica: str) -> None:
        """Count messages that other replicas of the pool have started. Raises: Unavailable."""
        reports = await self._bus.kv.values(streams.REPLICAS_BUCKET, ReplicaReport)
        others = [one for one in reports if one.service == service and one.pool == pool and one.replica != replica]
        names = {name for one in others for name in one.busy if name.partition("@")[0] == BEGUN}
        self._elsewhere = {name: sum(int(one.busy.get(name, 0)) for one in others) for name in names}


def name_of(consumer: Consumer) -> str:
    """Key in `ReplicaReport.busy` for the messages of this queue that a replica has started."""
    _, at, accelerator = consumer.name.partition("@")
    return f"{BEGUN}{at}{accelerator}"


class Reporter:
    def __init__(
        self, context: ExecutorContext, consumers: Sequence[Consumer], *, has_siblings: bool, siblings: Queues | None = None
    ) -> None:
        """`has_siblings`: whether other replicas of the pool share the queues. `siblings`: as in Reading. Pass `changed` to the
        reconciler."""
        self._context = context
        self._has_siblings = has_siblings
        self._backlog = Backlog(context.bus, consumers, lambda: context.executable.load, siblings)
        self._waiting = Waiting()
        self._changed = asyncio.Event()
        self.changed = self._changed.set

    @property
    def begun_by_queue(self) -> dict[str, int]:
        """Number of messages that this process has started, by `name_of` the queue."""
        return self._backlog.begun_by_queue

    async def run(self, follower: LeaseReconciler) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._backlog.declare())
            await self._backlog.is_declared.wait()
            runners.create_task(self._report(follower))
            runners.create_task(self._look(follower))
            if self._has_siblings:
                runners.create_task(run_forever(self._look_elsewhere, streams.REPLICA_TTL_S / 4, "queues_unknown"))

    async def _look_elsewhere(self) -> None:
        me = self._context.me
        await self._backlog.look_elsewhere(me.service, me.pool, me.replica)

    async def _look(self, follower: LeaseReconciler) -> None:
        while True:
            before = self._backlog.ready
            try:
                await self._backlog.look()
            except Retry as error:
                _failed(error)
            if self._backlog.ready != before:
                self._changed.set()
            await asyncio.sleep(QUEUE_LOOK_S if follower.state is ExecutorState.AWAKE else PARKED_LOOK_S)

    async def _report(self, follower: LeaseReconciler) -> None:
        last: object = None
        due_s = tallied_s = 0.0
        while True:
            self._changed.clear()
            now_s, is_awake = time.monotonic(), follower.state is ExecutorState.AWAKE
            if is_awake and now_s >= tallied_s + REPORT_S:
                self._context.tally.look()
                self._enter_present_bytes()
                tallied_s = now_s
            report = self._current(follower)
            essence = _essence(report)
            if now_s >= due_s or essence != last:
                last, due_s = essence, now_s + REPORT_S
                await self._send(report)
                await asyncio.sleep(MIN_SPACING_S)
            await is_set_within(self._changed, AWAKE_LOOK_S if is_awake else max(0.0, due_s - time.monotonic()))

    def _current(self, follower: LeaseReconciler) -> ExecutorReport:
        context, me, load = self._context, self._context.me, self._context.executable.load
        now_s = context.bus.clock.now_s()
        is_awake = follower.state is ExecutorState.AWAKE
        return ExecutorReport(
            accelerator=me.accelerator,
            executor=me.executor,
            pool=me.pool,
            replica=me.replica,
            epoch=follower.epoch,
            state=follower.state,
            tier=context.executable.tier,
            device_bytes=context.executable.device_bytes,
            host_bytes=context.executable.host_bytes,
            running=load.running if is_awake else None,
            begun=load.begun,
            left_s=load.left_s,
            ready=self._backlog.ready,
            ready_since_s=self._waiting.since_s(now_s, oldest_s=self._backlog.oldest_s, frozen=not is_awake and load.begun > 0),
            piece_s=context.tally.piece_s,
            pieces=context.tally.pieces,
            at_s=now_s,
            budget_bytes=context.budget_bytes,
        )

    def _enter_present_bytes(self) -> None:
        """Enter the bytes that the executor needs now: while it is awake, they change as tasks come and go. If they do not fit, the next
        wake fails."""
        need = self._context.executable.device_bytes
        if (shortage := self._context.locks.reserve(need, self._context.budget_bytes)) is not None:
            log.warning("device_full", reason=shortage)

    async def _send(self, report: ExecutorReport) -> None:
        try:
            await self._context.bus.requests.send(streams.executor_now(report.accelerator, report.executor), report)
        except Retry as error:
            log.debug("report_lost", reason=str(error))


def _essence(report: ExecutorReport) -> object:
    """The part of a report whose change is reported immediately; of numbers, only the magnitude."""
    return (
        *(report.state, report.tier, report.epoch, report.running),
        *(report.begun > 0, report.ready.bit_length(), report.ready_since_s is None, report.pieces > 0),
    )


def _failed(error: Exception) -> None:
    log.warning("queues_unknown", error=str(error) or type(error).__name__)
