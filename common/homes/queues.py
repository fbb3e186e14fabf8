"""Queues that a replica with a name reads: the pool's, its own, and others' as far as `reading.py` says.

A consumer of another's queue is there all the time, behind a gate: where it closes, requests are withdrawn, and what has begun goes on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import structlog

from common import streams
from common.bus import Bus, Delivery, GatedSlots, Handler, Outgoing, Slots
from common.errors import Retry
from common.homes.reading import AWAKE, BEGUN, OWN_QUEUE, Ages, Patience, Sibling, Taking, taking
from common.messages import ReplicaReport
from common.streams import REPLICA_TTL_S, REPLICAS_BUCKET, Consumer

LOOK_S = 0.25
"""Seconds between looks of an idle replica at others' queues."""
REPORTS_S = REPLICA_TTL_S / 4
"""Seconds between looks at who is there, and of a busy or parked replica at others' queues."""
AT_HOME_S = 600.0
"""Seconds since its last message in a replica's own queue for which a task counts as at home there."""
CONSUMERS: dict[str, Callable[[str], Consumer]] = {"rollout": streams.rollout_samples, "trainer": streams.trainer_batches}

log = structlog.get_logger()


@dataclass(frozen=True)
class Member:
    """A process that is one of its pool's replicas with a name."""

    service: str
    """rollout or trainer."""
    pool: str
    name: str
    process: str
    """Its name in reports; another after each restart, unless the deployment gives it one."""


class _Other:
    """The queue of another replica."""

    def __init__(self, name: str, consumer: Consumer, slots: GatedSlots) -> None:
        self.name = name
        self.consumer = consumer
        self.slots = slots
        self.is_declared = False
        self.ages = Ages()
        self.taking = Taking.NOTHING
        self.waited_at_s = float("-inf")
        """This process's time when anything last waited there."""


class Queues:
    def __init__(
        self,
        bus: Bus,
        me: Member,
        others: Sequence[str],
        slots: Slots,
        move_s: Callable[[], float],
        max_wait_s: float,
        *,
        start_s: float = REPLICA_TTL_S,
    ) -> None:
        """`others`: names of the pool's other replicas. `slots`: closed while this one is parked. `move_s`: seconds that it costs to
        serve a task elsewhere once. `start_s`: seconds from now in which others may be starting, too."""
        consumer_of = CONSUMERS[me.service]
        self._bus = bus
        self._me = me
        self._slots = slots
        self._move_s = move_s
        self._max_wait_s = max_wait_s
        self.own = (consumer_of(me.pool), consumer_of(streams.queue(me.pool, me.name)))
        """The pool's, and its own."""
        self._others = [_Other(each, consumer_of(streams.queue(me.pool, each)), GatedSlots(slots, self._end_help)) for each in others]
        self._starting_until_s = time.monotonic() + start_s
        self.reads_own = False
        """Whether its own queue has its consumer."""
        self._reports: list[ReplicaReport] = []
        self._last_s: dict[str, float] = {}
        """This process's time of the last message in its own queue, by task."""

    @property
    def consumers(self) -> list[Consumer]:
        """Of the queues of all others."""
        return [other.consumer for other in self._others]

    @property
    def taken_over(self) -> list[Consumer]:
        """Queues of replicas that cannot serve: what waits there is this one's too."""
        return [other.consumer for other in self._others if other.taking is Taking.OVER]

    def ages(self, consumer: Consumer) -> Ages:
        """Since when messages wait in another's queue: a copy."""
        return deepcopy(next(other.ages for other in self._others if other.consumer == consumer))

    def is_at_home(self, task: str) -> bool:
        """Whether messages of the task came to this replica's own queue lately."""
        return time.monotonic() - self._last_s.get(task, float("-inf")) < AT_HOME_S

    async def consume(self, handler: Handler, *, max_pull: int = 64) -> None:
        """Run `handler` as `Bus.consume` does, for each message of these queues, until cancelled.

        The pool's queue waits for no other: NATS permits it alone where the service's key is older than the pools file.
        """
        pools, own = self.own

        def noted(delivery: Delivery) -> AsyncIterator[Outgoing]:
            self._note(streams.task_of(delivery.subject))
            return handler(delivery)

        async with asyncio.TaskGroup() as runners:
            runners.create_task(self._bus.consume(pools, handler, self._slots, max_pull=max_pull))
            runners.create_task(self._consume_own(own, noted, max_pull))
            for other in self._others:
                runners.create_task(self._consume_others(other, handler))
            runners.create_task(self._watch())

    async def _consume_own(self, own: Consumer, handler: Handler, max_pull: int) -> None:
        await self._bus.declarations.declare_when_permitted(own)
        self.reads_own = True
        await self._bus.consume(own, handler, self._slots, max_pull=max_pull)

    async def _consume_others(self, other: _Other, handler: Handler) -> None:
        await self._bus.declarations.declare_when_permitted(other.consumer)
        other.is_declared = True
        await self._bus.consume(other.consumer, handler, other.slots, max_pull=1)

    def _end_help(self) -> None:
        """At the first message that was taken as help: the next may be taken at home, until this replica is idle again."""
        for other in self._others:
            if other.taking is Taking.HELP:
                self._take(other, Taking.NOTHING)

    def _note(self, task: str) -> None:
        if task not in self._last_s:
            self._last_s = {each: last_s for each, last_s in self._last_s.items() if self.is_at_home(each)}
        self._last_s[task] = time.monotonic()

    @property
    def _is_idle(self) -> bool:
        """Whether it is awake and has no message."""
        return not self._slots.are_closed and not sum(map(self._bus.held, (*self.own, *(other.consumer for other in self._others))))

    async def _watch(self) -> None:
        due_s = 0.0
        while True:
            is_due, is_idle = time.monotonic() >= due_s, self._is_idle
            try:
                if is_due:
                    self._reports = await self._bus.kv.values(REPLICAS_BUCKET, ReplicaReport)
                    due_s = time.monotonic() + REPORTS_S
                if is_due or is_idle:
                    for other in [each for each in self._others if each.is_declared]:
                        await self._look(other)
            except Retry as error:
                log.warning("queues_unknown", error=str(error))
            if not self._is_idle:
                self._end_help()
            await asyncio.sleep(LOOK_S)

    async def _look(self, other: _Other) -> None:
        """Raises: Unavailable."""
        found, now_s = await self._bus.streams.queue(other.consumer), self._bus.clock.now_s()
        there = [one for one in self._siblings if f"{OWN_QUEUE}@{other.name}" in one.busy]
        is_able = any(one.busy[f"{OWN_QUEUE}@{other.name}"] for one in there)
        is_able |= not there and time.monotonic() < self._starting_until_s
        is_awake = any(one.busy.get(AWAKE, 0) for one in there)
        elsewhere = sum(int(one.busy.get(f"{BEGUN}@{other.name}", 0)) for one in self._siblings)
        # What an awake replica holds it begins, or has begun since its report: it does not wait. What another holds may.
        kept = 0 if is_able and is_awake else max(0, found.unacknowledged - self._bus.held(other.consumer) - elsewhere)
        other.ages.look(now_s, pending=found.pending, kept=kept, delivered=found.delivered)
        waits_s = 0.0 if other.ages.oldest_s is None else max(0.0, now_s - other.ages.oldest_s)
        if found.pending + kept:
            other.waited_at_s = time.monotonic()
        sibling, patience = Sibling(is_able, is_awake, waits_s), Patience(self._move_s(), self._max_wait_s)
        self._take(other, taking(sibling, other.taking, time.monotonic() - other.waited_at_s, patience, is_idle=self._is_idle))

    @property
    def _siblings(self) -> list[ReplicaReport]:
        me = self._me
        return [one for one in self._reports if (one.service, one.pool) == (me.service, me.pool) and one.replica != me.process]

    def _take(self, other: _Other, found: Taking) -> None:
        before, other.taking = other.taking, found
        if found is Taking.NOTHING:
            other.slots.close()
        elif before is Taking.NOTHING:
            other.slots.open()
        if (found is Taking.OVER) != (before is Taking.OVER):
            event = "queue_taken_over" if found is Taking.OVER else "queue_given_back"
            log.info(event, replica=other.name, consumer=other.consumer.name)
