"""Queues that a named replica reads: the pool's, its own, and, if `reading.py` decides so, those of the pool's other replicas.

The consumer of another replica's queue exists all the time, behind a gate. Closing the gate withdraws the requests for messages; messages
that were started continue.
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
from common.homes.reading import AWAKE, BEGUN, MAX_LOAD, OWN_QUEUE, Ages, Patience, Sibling, Taking, taking
from common.messages import ReplicaReport
from common.streams import REPLICA_TTL_S, REPLICAS_BUCKET, Consumer

LOOK_S = 0.25
"""Seconds between checks of other replicas' queues by a replica that may help them."""
REPORTS_S = REPLICA_TTL_S / 4
"""Seconds between reads of all replicas' reports, and between a full or parked replica's checks of other replicas' queues."""
AT_HOME_S = 600.0
"""Seconds for which a task counts as at home on a replica after the task's last message in the replica's own queue."""
CONSUMERS: dict[str, Callable[[str], Consumer]] = {"rollout": streams.rollout_samples, "trainer": streams.trainer_batches}

log = structlog.get_logger()


@dataclass(frozen=True)
class Member:
    """A process that is one of its pool's named replicas."""

    service: str
    """`rollout` or `trainer`."""
    pool: str
    name: str
    process: str
    """Process name in reports; changes at each restart, unless the deployment sets it."""


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
        """This process's monotonic time when messages last waited in this queue."""


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
        """`others`: names of the pool's other replicas. `slots`: closed while this replica is parked. `move_s`: returns the cost in seconds
        of serving a task once away from its home. `max_wait_s`: as in Patience. `start_s`: seconds from now for which other replicas may
        still be starting.
        """
        consumer_of = CONSUMERS[me.service]
        self._bus = bus
        self._me = me
        self._slots = slots
        self._move_s = move_s
        self._max_wait_s = max_wait_s
        self.own = (consumer_of(me.pool), consumer_of(streams.queue(me.pool, me.name)))
        """Consumers of the pool's queue, and of this replica's own."""
        self._others = [_Other(each, consumer_of(streams.queue(me.pool, each)), GatedSlots(slots, self._end_help)) for each in others]
        self._starting_until_s = time.monotonic() + start_s
        self.reads_own = False
        """Whether the consumer of this replica's own queue is declared."""
        self._reports: list[ReplicaReport] = []
        self._last_s: dict[str, float] = {}
        """This process's monotonic time of the last message in this replica's own queue, by task."""

    @property
    def consumers(self) -> list[Consumer]:
        """Consumers of all other replicas' queues."""
        return [other.consumer for other in self._others]

    @property
    def taken_over(self) -> list[Consumer]:
        """Consumers of the queues that this replica has taken over, because their replicas cannot serve them."""
        return [other.consumer for other in self._others if other.taking is Taking.OVER]

    def ages(self, consumer: Consumer) -> Ages:
        """Ages of the messages that wait in another replica's queue, which `consumer` reads; a copy."""
        return deepcopy(next(other.ages for other in self._others if other.consumer == consumer))

    def is_at_home(self, task: str) -> bool:
        """Whether messages of the task recently arrived in this replica's own queue."""
        return time.monotonic() - self._last_s.get(task, float("-inf")) < AT_HOME_S

    async def consume(self, handler: Handler, *, max_pull: int = 64) -> None:
        """Run `handler` as `Bus.consume` does, for each message of these queues, until cancelled.

        The pool's queue is read even while the others cannot be: NATS permits no other queue if the service's key is older than the pools
        file.
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
        """Stop helping other replicas with their queues, once a message was taken from one. The queue's own replica may take the next
        message; this replica helps again after its next check."""
        for other in self._others:
            if other.taking is Taking.HELP:
                self._take(other, Taking.NOTHING)

    def _note(self, task: str) -> None:
        if task not in self._last_s:
            self._last_s = {each: last_s for each, last_s in self._last_s.items() if self.is_at_home(each)}
        self._last_s[task] = time.monotonic()

    @property
    def _load(self) -> float:
        """Fraction of this replica's capacity in use; 1 for a parked one, and for a trainer with a message: its steps run one by one."""
        if self._me.service == "rollout" or self._slots.are_closed:
            return self._slots.load
        return float(any(map(self._bus.held, (*self.own, *(other.consumer for other in self._others)))))

    async def _watch(self) -> None:
        due_s = 0.0
        while True:
            is_due, may_help = time.monotonic() >= due_s, self._load <= MAX_LOAD
            try:
                if is_due:
                    self._reports = await self._bus.kv.values(REPLICAS_BUCKET, ReplicaReport)
                    due_s = time.monotonic() + REPORTS_S
                if is_due or may_help:
                    for other in [each for each in self._others if each.is_declared]:
                        await self._look(other)
            except Retry as error:
                log.warning("queues_unknown", error=str(error))
            if self._load > MAX_LOAD:
                self._end_help()
            await asyncio.sleep(LOOK_S)

    async def _look(self, other: _Other) -> None:
        """Check another replica's queue, and decide whether to take messages from it. Raises: Unavailable."""
        found, now_s = await self._bus.streams.queue(other.consumer), self._bus.clock.now_s()
        there = [one for one in self._siblings if f"{OWN_QUEUE}@{other.name}" in one.busy]
        is_able = any(one.busy[f"{OWN_QUEUE}@{other.name}"] for one in there)
        is_able |= not there and time.monotonic() < self._starting_until_s
        is_awake = any(one.busy.get(AWAKE, 0) for one in there)
        elsewhere = sum(int(one.busy.get(f"{BEGUN}@{other.name}", 0)) for one in self._siblings)
        # Messages that an awake replica holds do not wait: it starts them, or has since its report. Those of a parked replica may wait.
        kept = 0 if is_able and is_awake else max(0, found.unacknowledged - self._bus.held(other.consumer) - elsewhere)
        other.ages.look(now_s, pending=found.pending, kept=kept, delivered=found.delivered)
        waits_s = 0.0 if other.ages.oldest_s is None else max(0.0, now_s - other.ages.oldest_s)
        if found.pending + kept:
            other.waited_at_s = time.monotonic()
        sibling, patience = Sibling(is_able, is_awake, waits_s), Patience(self._move_s(), self._max_wait_s)
        self._take(other, taking(sibling, other.taking, time.monotonic() - other.waited_at_s, patience, load=self._load))

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
