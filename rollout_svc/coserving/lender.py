"""Sets how many rollouts a replica takes, from the engine's figures, and hands back turns that would be sampled sooner elsewhere.

A turn may be held for long: the engine runs the oldest first. If another replica has room, a message whose requests had no token for 2 s is
handed back, whole and before any of its turns is answered. NATS redelivers it immediately to a replica that requests messages. This one
requests none for HANDED_BACK_S, which is longer than another replica takes to help with this one's own queue. A message that comes back all
the same stays: each replica hands it back once, so hand-backs end long before `Consumer.max_deliveries`.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise

import structlog

from common.bus import Bus, Slots
from common.caches import LRUCache
from common.homes.reading import AWAKE, BEGUN, MAX_LOAD
from common.messages import ReplicaReport
from common.periodic import run_forever
from common.streams import REPLICAS_BUCKET
from rollout_svc.coserving.figures import Figures
from rollout_svc.coserving.lending import WINDOW_S, Room, Use, lend
from rollout_svc.engine.engine import Engine
from rollout_svc.service import Rollout

LOOK_S = 1.0
STALLED_S = 2.0
"""Seconds without a token after which a request is stalled."""
HANDED_BACK_S = 5.0
"""Seconds between hand-backs: the next reports of other replicas then include what they took."""
REMEMBERED = 10_000
"""Maximum messages remembered as handed back."""

log = structlog.get_logger()


class Window:
    """The engine's figures of the last WINDOW_S, one a second. Pure."""

    def __init__(self) -> None:
        self._seen: deque[Figures] = deque(maxlen=round(WINDOW_S / LOOK_S) + 1)

    def add(self, figures: Figures) -> None:
        if self._seen and figures.steps < self._seen[-1].steps:  # the engine was restarted
            self._seen.clear()
        self._seen.append(figures)

    @property
    def use(self) -> Use:
        """Use of the window; none while the engine makes no steps."""
        kv = [now.serving_blocks / max(1.0, now.blocks) if now.steps > before.steps else 0.0 for before, now in pairwise(self._seen)]
        return Use(sum(kv) / max(1, len(kv)), self._withheld_per("rollout_steps"))

    @property
    def held(self) -> float:
        """Mean number of rollouts held in a step."""
        return self._withheld_per("steps")

    def _withheld_per(self, name: str) -> float:
        grown = getattr(self._seen[-1], name) - getattr(self._seen[0], name) if self._seen else 0.0
        return (self._seen[-1].withheld_steps - self._seen[0].withheld_steps) / grown if grown else 0.0


class Stalls:
    """Requests without a new token. Pure."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, float]] = {}
        """Tokens of each request, and the time since when it has had as many."""

    def look(self, tokens: Mapping[str, int], now_s: float) -> set[str]:
        """Ids of requests that have had the same number of tokens for STALLED_S. `tokens`: number so far, by request inside the engine."""
        before = self._since
        self._since = {one: before[one] if one in before and before[one][0] == count else (count, now_s) for one, count in tokens.items()}
        return {one for one, (_, since_s) in self._since.items() if now_s - since_s >= STALLED_S}


def room_elsewhere(reports: list[ReplicaReport], pool: str, replica: str) -> float:
    """Sequences that the pool's other replicas may take before they are MAX_LOAD full, by their reports."""
    others = [one for one in reports if one.service == "rollout" and one.pool == pool and one.replica != replica]
    awake = [one for one in others if one.busy.get(AWAKE, BEGUN not in one.busy)]
    return sum(max(0.0, MAX_LOAD * one.sequences - one.busy.get("sequences", one.sequences)) for one in awake)


class Lender:
    def __init__(
        self,
        bus: Bus,
        me: tuple[str, str],
        room: Room,
        slots: Slots,
        rollout: Rollout,
        engine: Engine,
        read: Callable[[], Figures | None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`me`: pool and name of the replica. `slots`: those of its rollouts. `read`: the engine's figures, None before the first."""
        self._bus = bus
        self._me = me
        self.room = room
        self._slots = slots
        self._rollout = rollout
        self._engine = engine
        self._read = read
        self._now_s = now_s
        self._window = Window()
        self._stalls = Stalls()
        self._handed_back: LRUCache[str, bool] = LRUCache(REMEMBERED)
        """Messages that were handed back, by their first request's id."""
        self._handed_back_s = float("-inf")

    @property
    def withheld(self) -> float:
        """Mean number of rollout sequences that serving withholds: those not taken, and those held in a step."""
        return self.room.withheld + self._window.held

    async def run(self) -> None:
        """Follow the figures until cancelled."""
        await run_forever(self.look, LOOK_S, "room_unchanged")

    async def look(self) -> None:
        """Adjust the room, and hand back stalled messages. Raises: Unavailable."""
        now_s, figures = self._now_s(), self._read()
        if figures is not None:
            self._window.add(figures)
            before, self.room = self.room, lend(self.room, self._window.use, now_s)
            if self.room is not before:
                log.info("room_changed", sequences=self.room.sequences, before=before.sequences)
        stalled = self._stalled(now_s)
        if now_s - self._handed_back_s >= HANDED_BACK_S:
            self._slots.resize(self.room.sequences)
            if stalled and self.withheld >= 1 and not self._slots.are_closed:
                await self._hand_back(stalled, now_s)

    def _stalled(self, now_s: float) -> list[list[str]]:
        """Requests of each message that may be handed back, the newest first."""
        stalled = self._stalls.look(self._engine.process.progress(), now_s)
        whole = reversed(self._rollout.unanswered_messages.values())
        return [ids for ids in whole if stalled.issuperset(ids) and self._handed_back.peek(ids[0]) is None]

    async def _hand_back(self, stalled: list[list[str]], now_s: float) -> None:
        left = room_elsewhere(await self._bus.kv.values(REPLICAS_BUCKET, ReplicaReport), *self._me)
        chosen: list[str] = []
        for ids in stalled:
            if len(ids) <= left and ids[0] in self._rollout.unanswered_messages:  # none of its turns was answered meanwhile
                left -= len(ids)
                chosen += ids
                self._handed_back.put(ids[0], True)
        if chosen:
            self._handed_back_s = now_s
            self._slots.resize(self._slots.used - len(chosen))  # first, or the units that become free would bring the messages back
            log.info("turns_handed_back", sequences=len(chosen))
            await self._engine.hand_back(chosen)
