"""SIMULATED engines, replicas and tasks: discrete events around the product's own functions, which are imported and not copied.

Left out: KV pressure, adapters, and the scheduler, which sends all groups of a step to the task's home.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from bench.coserving.sums import PROMPT, ROLLOUT_PROMPT, ROLLOUT_TOKENS, TOKENS, Asked
from bench.plex.events import Events
from common.bus import Slots
from common.homes import reading
from common.messages import ReplicaReport
from common.pools import Goals
from rollout_svc.coserving import plan
from rollout_svc.coserving.figures import Figures
from rollout_svc.coserving.lender import Lender
from rollout_svc.coserving.lending import Room
from rollout_svc.coserving.step_time import StepTime
from rollout_svc.replica import MOVE_S

SEATS, SERVED = 64, 16
"""Sequences for rollouts and for serving."""
BLOCK, BLOCKS = 16, 4096
"""Tokens of a block of KV cache, and its blocks."""
SHARE, JITTER = 0.1, 0.1
"""`training_share`, and the standard deviation of the logarithm of a step's duration."""
GROUPS, MEMBERS, TRAIN_S = 8, 8, 2.0
"""Groups of a task's step, members of each, and seconds between the last trajectory and the next step."""
MEDIAN, DEVIATIONS = 100, 2.5
"""Median tokens of a trajectory; and standard deviations between it and the longest of a step."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a step: of so many decodes, linear between those that were measured, and for each prompt token."""

    decodes: tuple[float, ...]
    seconds: tuple[float, ...]
    token_s: float

    @classmethod
    def of(cls, ttft_s: float, tpot_s: float, tokens_per_s: float, beside: Mapping[int, float] = MappingProxyType({})) -> "Cost":
        """From a first and a further token alone, and from rollout tokens without serving, all `SEATS` in use.

        `beside`: seconds of a further token with so many rollouts beside it.
        """
        each = sum(ROLLOUT_TOKENS) / 2
        rows = ((1, 0, PROMPT), (1, 1, 0), (1, SEATS * (1 - 1 / each), SEATS * ROLLOUT_PROMPT / each))
        fixed_s, decode_s, token_s = np.linalg.solve(np.array(rows), np.array((ttft_s, tpot_s, SEATS / tokens_per_s))).tolist()
        points = {0: fixed_s, 1: tpot_s} | {1 + count: took_s for count, took_s in beside.items()} | {SEATS: fixed_s + decode_s * SEATS}
        return cls(tuple(points), tuple(points.values()), token_s)

    def step_s(self, decodes: int, tokens: int) -> float:
        after = min(max(1, bisect_right(self.decodes, decodes)), len(self.decodes) - 1)
        (fewer, more), (least_s, most_s) = self.decodes[after - 1 : after + 1], self.seconds[after - 1 : after + 1]
        return least_s + (most_s - least_s) * (decodes - fewer) / (more - fewer) + self.token_s * tokens


class Wrong(StepTime):
    """Estimates that stay wrong by a factor, whatever is learned."""

    factor = 1.0

    def expected_s(self, decodes: int, prefill_tokens: int) -> float:
        return self.factor * super().expected_s(decodes, prefill_tokens)


@dataclass(eq=False)
class Rollout:
    name: str
    left: int
    ended: Callable[[], None]
    tokens: int = 0


@dataclass
class Served(Asked):
    due_s: float = 0.0
    """When it was sent."""

    def stream(self, tpot_s: float) -> plan.Stream:
        assert self.first_s is not None
        return plan.Stream(self.due_s + self.first_s, self.due_s + self.last_s, self.tokens, TOKENS - self.tokens, tpot_s)


@dataclass
class Engine:
    """One engine under one arm's `decide`."""

    clock: Events
    cost: Cost
    decide: Callable[..., plan.Plan]
    goals: Goals
    seed: int
    factor: float = 1.0
    """By which its step time model is wrong."""
    jitter: float = JITTER
    rollouts: list[Rollout] = field(default_factory=list[Rollout])
    waiting: deque[Rollout] = field(default_factory=deque[Rollout])
    serving: list[Served] = field(default_factory=list[Served])
    asked: deque[Served] = field(default_factory=deque[Served])
    tokens: int = 0
    """Of rollouts."""

    def __post_init__(self) -> None:
        profile = [(n, tokens, self.cost.step_s(n, tokens)) for n in (1, 8, 32, SEATS) for tokens in (0, 40, PROMPT)]
        self._times, self._random, self._training, self._runs = Wrong(profile), Random(self.seed), plan.Share(), False
        self._times.factor = self.factor
        self._steps = self._wanted = self._withheld = 0

    def figures(self) -> Figures:
        blocks = sum((PROMPT + one.tokens) // BLOCK + 1 for one in self.serving)
        return Figures(self._steps, self._wanted, self._withheld, serving_blocks=blocks, blocks=BLOCKS)

    def serve(self, asked: Served) -> None:
        self.asked.append(asked)
        self.wake()

    def drop(self, rollouts: Sequence[Rollout]) -> None:
        """Forget rollouts; they begin again elsewhere."""
        names = {one.name for one in rollouts}
        self.rollouts = [one for one in self.rollouts if one.name not in names]
        self.waiting = deque(one for one in self.waiting if one.name not in names)
        for one in rollouts:
            one.left, one.tokens = one.left + one.tokens, 0

    def wake(self) -> None:
        if not self._runs:
            self._runs = True
            self.clock.at(self.clock.now_s, self._step)

    def _step(self) -> None:
        if not (self.rollouts or self.waiting or self.serving or self.asked):
            self._runs = False
            return
        entering, chosen = self._chosen(self.clock.now_s)
        begun, first = [self.waiting.popleft() for _ in range(chosen.prompts)], [self.asked.popleft() for _ in range(entering)]
        served, running = self.serving, self.rollouts[: chosen.running]
        decodes, tokens = len(served) + len(running), PROMPT * len(first) + ROLLOUT_PROMPT * len(begun)
        took_s = self.cost.step_s(decodes, tokens) * self._random.lognormvariate(0.0, self.jitter)
        self.rollouts += begun
        self.serving = [*served, *first]

        def end() -> None:
            self._times.learn(decodes, tokens, took_s)
            for request in self.serving:
                request.came(1, self.clock.now_s - request.due_s)
                request.is_complete = request.tokens == TOKENS
            self.serving = [request for request in self.serving if not request.is_complete]
            self.tokens += len(running) + len(begun)
            for one in (*running, *begun):
                one.tokens, one.left = one.tokens + 1, one.left - 1
                if not one.left:
                    self.rollouts.remove(one)
                    one.ended()
            self._step()

        self.clock.at(self.clock.now_s + took_s, end)

    def _chosen(self, now_s: float) -> tuple[int, plan.Plan]:
        """Served prompts, and rollouts, of the next step. The product's scheduler asks the same functions for the same."""
        free = min(SEATS - len(self.rollouts), len(self.waiting))
        if not (self.serving or self.asked):
            left_s, prompts = plan.LEFT * plan.AIMED * self.goals.ttft_s, [ROLLOUT_PROMPT] * min(free, plan.PROMPTS_SEEN)
            free = plan.prompts_at_once(left_s, len(self.rollouts), prompts, self._times)
            self._count(now_s, len(self.rollouts), 0)
            return 0, plan.Plan(len(self.rollouts), free)
        times, decodes, goals = self._times, len(self.serving), self.goals
        decode_s, prompts = times.expected_s(decodes, 0), [PROMPT] * min(len(self.asked), SERVED - decodes)

        serving = [plan.next_due(one.stream(goals.tpot_s), decode_s) for one in self.serving]
        asked = [plan.Due(one.due_s + plan.AIMED * goals.ttft_s, one.due_s + goals.ttft_s) for one in self.asked]
        entering = plan.prompts_entering(serving, asked, now_s, decode_s, decodes, prompts, times)
        step_s, later_s = times.expected_s(decodes, PROMPT * entering), times.expected_s(0, PROMPT)
        asked[entering:] = [due.sooner(later_s) for due in asked[entering:]]
        dues = [due.by_s(now_s, step_s) for due in (*serving, *asked)]
        free = min(free, plan.PROMPTS_PLANNED)
        certain = plan.Certain(dues, decodes, PROMPT * entering, under_way_s=0.0)
        wanted = plan.Wanted(len(self.rollouts), [ROLLOUT_PROMPT] * (free if entering == len(self.asked) else 0))
        chosen = self.decide(now_s, certain, wanted, times, guaranteed=self._training.value < SHARE)
        might = len(self.rollouts) + (len(wanted.prompts) if chosen.running == len(self.rollouts) else 0)
        self._count(now_s, might, might - chosen.running - chosen.prompts)
        return entering, chosen

    def _count(self, now_s: float, wanted: int, withheld: int) -> None:
        self._training.add(wanted - withheld, wanted, now_s)
        self._steps, self._wanted, self._withheld = self._steps + 1, self._wanted + wanted, self._withheld + withheld


@dataclass
class Message:
    """Rollouts of one group, and the queue that they wait in."""

    rollouts: list[Rollout]
    queue: deque["Message"]
    came_s: float
    at: "Replica | None" = None
    """Who samples them."""


class Replica:
    """An engine with the product's lender and slots, its own queue, and what it takes from others'."""

    def __init__(self, name: str, engine: Engine, reports: Callable[[], list[ReplicaReport]] | None) -> None:
        """`reports`: what it knows of all replicas; None: it lends nothing."""
        self.name, self.engine, self.queue, self.slots = name, engine, deque[Message](), Slots(SEATS)
        self.begun = self.helped = self.handed_back = 0
        self.sizes = [SEATS]
        """Sequences of its room, one after another."""
        self._messages: dict[str, Message] = {}
        self._lender = self._made(reports) if reports is not None else None

    def _made(self, reports: Callable[[], list[ReplicaReport]]) -> Lender:
        async def values(*_: object) -> list[ReplicaReport]:
            return reports()

        async def hand_back(names: Sequence[str]) -> None:
            for message in [self._messages.pop(name) for name in names if name in self._messages]:
                self._hand_back(message)

        clock, bus, me = self.engine.clock, SimpleNamespace(kv=SimpleNamespace(values=values)), ("sim", self.name)
        inside = SimpleNamespace(process=SimpleNamespace(progress=self._progress), hand_back=hand_back)
        parts: Any = (bus, me, Room.of(SEATS, SHARE, 0.0), self.slots, self, inside, self.engine.figures, lambda: clock.now_s)
        return Lender(*parts)

    @property
    def unanswered_messages(self) -> dict[str, list[str]]:
        return {name: [one.name for one in of.rollouts] for name, of in self._messages.items() if all(one.left for one in of.rollouts)}

    @property
    def report(self) -> ReplicaReport:
        busy = {"sequences": float(self.slots.used), reading.AWAKE: 1.0}
        return ReplicaReport.model_construct(replica=self.name, service="rollout", pool="sim", sequences=self.sizes[-1], busy=busy)

    def _progress(self) -> dict[str, int]:
        return {one.name: one.tokens for message in self._messages.values() for one in message.rollouts if one.left}

    def look(self) -> None:
        """What its lender does each second."""
        if self._lender is not None:
            finish(self._lender.look())
            if self._lender.room.sequences != self.sizes[-1]:
                self.sizes.append(self._lender.room.sequences)
            self.take()

    def take(self) -> None:
        while self.queue and self.slots.free > 0:
            self._begin(self.queue.popleft())

    def help(self, others: Sequence["Replica"]) -> None:
        """Take a message that waits elsewhere, if the product's rule says so."""
        for other in [each for each in others if each is not self and each.queue]:
            sibling = reading.Sibling(is_able=True, is_awake=True, waits_s=self.engine.clock.now_s - other.queue[0].came_s)
            taking = reading.taking(sibling, reading.Taking.NOTHING, 0.0, reading.Patience(MOVE_S, 60.0), load=self.slots.load)
            if taking is not reading.Taking.NOTHING and self.slots.free > 0:
                self.helped += 1
                self._begin(other.queue.popleft())
                return

    def _begin(self, message: Message) -> None:
        message.at, self._messages[message.rollouts[0].name] = self, message
        self.begun += 1
        self.slots.take(len(message.rollouts))
        self.engine.waiting.extend(message.rollouts)
        self.engine.wake()

    def end(self, message: Message) -> None:
        """One of its rollouts has ended."""
        self.slots.release(1)
        if not any(one.left for one in message.rollouts):
            del self._messages[message.rollouts[0].name]
        self.take()

    def _hand_back(self, message: Message) -> None:
        self.handed_back += 1
        self.engine.drop(message.rollouts)
        self.slots.release(len(message.rollouts))
        message.at, message.came_s = None, self.engine.clock.now_s
        message.queue.appendleft(message)


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("it waits")


class Task:
    """A task's steps: each begins `TRAIN_S` after the last trajectory of the one before. The longest of a step has about `tail` times the
    median's tokens.
    """

    def __init__(self, name: str, home: Replica, tail: float, seed: int) -> None:
        self.steps_s: list[float] = []
        self._name, self._home, self._clock, self._random = name, home, home.engine.clock, Random(seed)
        self._tail, self._began_s, self._open = tail, 0.0, 0

    def begin(self) -> None:
        self._began_s, self._open = self._clock.now_s, GROUPS * MEMBERS
        for group in range(GROUPS):
            message = Message([], self._home.queue, self._began_s)
            for member in range(MEMBERS):
                drawn = self._random.lognormvariate(0.0, log(self._tail) / DEVIATIONS)
                tokens = max(1, round(MEDIAN * min(drawn, 2 * self._tail)))
                name = f"{self._name}:{len(self.steps_s)}:{group}:{member}"
                message.rollouts.append(Rollout(name, tokens, lambda message=message: self._end(message)))
            self._home.queue.append(message)
        self._home.take()

    def _end(self, message: Message) -> None:
        assert message.at is not None
        message.at.end(message)
        self._open -= 1
        if not self._open:
            self.steps_s.append(self._clock.now_s - self._began_s)
            self._clock.at(self._clock.now_s + TRAIN_S, self.begin)


def send(clock: Events, engines: Sequence[Engine], times: Sequence[float]) -> list[Asked]:
    """Requests at these times, each to the engine that has the fewest; the list grows with the clock."""
    sent = list[Asked]()

    def serve() -> None:
        sent.append(one := Served(due_s=clock.now_s))
        min(engines, key=lambda engine: len(engine.serving) + len(engine.asked)).serve(one)

    for at_s in times:
        clock.at(at_s, serve)
    return sent
