"""SIMULATION of engines that serve and sample: discrete events around the product's own functions, which are imported and not copied.

Steps take what a measured engine's do: their three costs come from two of its arms, serving alone and training alone, and rollout tokens of
others are predicted. Nothing is printed unless predictions are within `NEAR` of what was measured, by these very modules.
Left out: KV pressure, adapters, and the scheduler, which sends each step's groups at once.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import structlog

from bench.coserving import trace
from bench.coserving.sums import (
    DECIDES,
    PROMPT,
    ROLLOUT_PROMPT,
    ROLLOUT_TOKENS,
    TOKENS,
    TPOT,
    TTFT,
    Asked,
    Options,
    Row,
    Window,
    at_least,
    at_most,
    row,
)
from bench.harness import report
from bench.harness.services import BenchError
from bench.plex import events
from common.bus import Slots, delivery
from common.homes import queues, reading
from common.messages import ReplicaReport
from common.pools import Goals
from rollout_svc.coserving import figures, lender, lending, plan, step_time
from rollout_svc.replica import MOVE_S

MODULES = (plan, step_time, lending, lender, figures, reading, queues, delivery)
NEAR = 0.2
"""Maximum error of a prediction, relative to what was measured."""
SEATS, SERVED = 64, 16
"""Sequences for rollouts and for serving."""
BLOCK, BLOCKS, SHARE, JITTER = 16, 4096, 0.1, 0.1
MEDIAN, SPREADS = 100, 2.5
"""Median tokens of a trajectory; standard deviations between it and the longest of a step."""
POINTS, LOADS, ARMS = 6, {"30 %": 0.3, "70 %": 0.7}, ("slices", "cap-16", "ours")
"""Points that must be near, by the loads and arms that `arms` measures."""
OWN, LENDING = 6, 8
"""Engines for rollouts alone, and those that serve (48 : 64 in the paper)."""
TASKS, GROUPS, MEMBERS, TRAIN_S = 28, 8, 8, 2.0
"""Tasks, groups of a step, members of a group, and seconds between a step's last trajectory and the next step."""


def digest(modules: Sequence[ModuleType] = MODULES) -> str:
    """Of the functions that decide here and in a measured engine."""
    return hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in modules)).hexdigest()


@dataclass(frozen=True)
class Cost:
    """Seconds of a step: fixed, for each decode, for each prompt token."""

    fixed_s: float
    decode_s: float
    token_s: float

    @classmethod
    def of(cls, ttft_s: float, tpot_s: float, tokens_per_s: float) -> "Cost":
        """From a first and a further token alone, and from rollout tokens without serving, all `SEATS` in use."""
        each = sum(ROLLOUT_TOKENS) / 2
        decodes, prompt_tokens = SEATS * (1 - 1 / each), SEATS * ROLLOUT_PROMPT / each
        rows = ((1, 0, PROMPT), (1, 1, 0), (1, decodes, prompt_tokens))
        return cls(*np.linalg.solve(np.array(rows), np.array((ttft_s, tpot_s, SEATS / tokens_per_s))).tolist())

    def step_s(self, decodes: int, tokens: int) -> float:
        return self.fixed_s + self.decode_s * decodes + self.token_s * tokens


class Wrong(step_time.StepTime):
    """Estimates that stay wrong by a factor, whatever is learned."""

    factor = 1.0

    def expected_s(self, decodes: int, prefill_tokens: int) -> float:
        return self.factor * super().expected_s(decodes, prefill_tokens)


@dataclass
class Rollout:
    name: str
    left: int
    ended: Callable[[], None]
    tokens: int = 0


@dataclass
class Served(Asked):
    due_s: float = 0.0
    """When it was sent."""


@dataclass
class Engine:
    """One engine under one arm's `decide`. `factor`: by which its step time model is wrong."""

    clock: events.Events
    cost: Cost
    decide: Callable[..., plan.Plan]
    goals: Goals
    seed: int
    factor: float = 1.0
    jitter: float = JITTER
    """Standard deviation of a step's logarithm."""
    rollouts: list[Rollout] = field(default_factory=list[Rollout])
    waiting: deque[Rollout] = field(default_factory=deque[Rollout])
    serving: list[Served] = field(default_factory=list[Served])
    asked: deque[Served] = field(default_factory=deque[Served])
    tokens: int = 0
    counts: figures.Figures = field(default_factory=figures.Figures)

    def __post_init__(self) -> None:
        profile = [(n, tokens, self.cost.step_s(n, tokens)) for n in (1, 8, 32, SEATS) for tokens in (0, 40, PROMPT)]
        self._times, self._random, self._training, self._runs = Wrong(profile), Random(self.seed), plan.Share(), False
        self._times.factor = self.factor

    def serve(self, asked: Served) -> None:
        self.asked.append(asked)
        self.wake()

    def drop(self, rollouts: Sequence[Rollout]) -> None:
        """Forget rollouts; they begin anew elsewhere."""
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
        begun = [self.waiting.popleft() for _ in range(chosen.prompts)]
        served, first = list(self.serving), [self.asked.popleft() for _ in range(entering)]
        running = self.rollouts[: chosen.running]
        decodes, tokens = len(served) + len(running), PROMPT * len(first) + ROLLOUT_PROMPT * len(begun)
        took_s = self.cost.step_s(decodes, tokens) * self._random.lognormvariate(0.0, self.jitter)
        self.rollouts += begun
        self.serving += first

        def end() -> None:
            now_s = self.clock.now_s
            if served or first:
                self._times.learn(decodes, tokens, took_s)
            for request in (*served, *first):
                request.came(1, now_s - request.due_s)
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
        """Served prompts, and rollouts, of the next step: as the product's scheduler asks the same functions."""
        free = min(SEATS - len(self.rollouts), len(self.waiting))
        if not (self.serving or self.asked):
            self._count(now_s, len(self.rollouts) + free, 0)
            return 0, plan.Plan(len(self.rollouts), free)
        times, decodes = self._times, len(self.serving)
        decode_s, prompts = times.expected_s(decodes, 0), [PROMPT] * min(len(self.asked), SERVED - decodes)

        def dues_s(step_s: float) -> list[float]:
            return [plan.next_due_s(self._stream(one), now_s, step_s, decode_s) for one in self.serving]

        slack_s = min((due - now_s for due in dues_s(decode_s)), default=float("inf"))
        entering = plan.prompts_at_once(slack_s, decodes, prompts, times) if prompts else 0
        dues = dues_s(times.expected_s(decodes, PROMPT * entering))
        for place, one in enumerate(self.asked):
            later_s = times.expected_s(0, PROMPT) if place >= entering else 0.0
            dues.append(one.due_s + plan.AIMED * self.goals.ttft_s - later_s)
        outside = min(free, plan.PROMPTS_PLANNED) if entering == len(self.asked) else 0
        chosen = self.decide(
            now_s,
            plan.Certain(dues, decodes, PROMPT * entering, 0.0),
            plan.Wanted(len(self.rollouts), [ROLLOUT_PROMPT] * outside),
            times,
            owed=self._training.value < SHARE,
        )
        wanted = len(self.rollouts) + min(free, plan.PROMPTS_PLANNED)
        self._count(now_s, wanted, wanted - chosen.running - chosen.prompts)
        return entering, chosen

    def _stream(self, one: Served) -> plan.Stream:
        assert one.first_s is not None
        return plan.Stream(one.due_s + one.first_s, one.due_s + one.last_s, one.tokens, TOKENS - one.tokens, plan.AIMED * self.goals.tpot_s)

    def _count(self, now_s: float, wanted: int, withheld: int) -> None:
        before = self.counts
        self._training.add(wanted - withheld, wanted, now_s)
        self.counts = figures.Figures(
            steps=before.steps + 1,
            rollout_steps=before.rollout_steps + wanted,
            withheld_steps=before.withheld_steps + withheld,
            serving_blocks=sum((PROMPT + one.tokens) // BLOCK + 1 for one in self.serving),
            blocks=BLOCKS,
        )


# ----------------------------------------------------------------------------------------------------------------- one engine, and points


@dataclass(frozen=True)
class Point:
    """What an arm of one engine was measured to sample beside serving."""

    arm: str
    rate: float
    """Requests a second."""
    tokens_per_s: float
    """Of rollouts, measured."""
    has_bursts: bool = False


def one_engine(point: Point, cost: Cost, goals: Goals, seconds: float, seed: int) -> Window:
    """An engine whose `SEATS` are always wanted, beside requests at the point's rate."""
    clock = events.Events()
    engine, random, asked = Engine(clock, cost, DECIDES[point.arm], goals, seed), Random(seed), list[Asked]()

    def refill() -> None:
        engine.waiting.append(Rollout("", random.randint(*ROLLOUT_TOKENS), refill))

    for _ in range(SEATS):
        refill()
    engine.wake()
    send(clock, [engine], trace.arrivals(point.rate, seconds, seed), asked)
    clock.run(seconds)
    return Window([one for one in asked if one.is_complete], goals, seconds, engine.tokens)


def send(clock: events.Events, engines: Sequence[Engine], times: Sequence[float], asked: list[Asked]) -> None:
    """Requests at these times, each to the engine that has the fewest."""

    def serve() -> None:
        asked.append(one := Served(due_s=clock.now_s))
        min(engines, key=lambda engine: len(engine.serving) + len(engine.asked)).serve(one)

    for at_s in times:
        clock.at(at_s, serve)


# --------------------------------------------------------------------------------------------------------------------------- many engines


@dataclass
class Message:
    """Rollouts of one group, and the queue that they wait in."""

    rollouts: list[Rollout]
    queue: deque["Message"]
    came_s: float
    at: "Replica | None" = None
    """Who samples them."""

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.rollouts]


class Replica:
    """An engine with the product's lender and slots, its own queue, and what it takes from others'."""

    def __init__(self, name: str, engine: Engine, reports: Callable[[], list[ReplicaReport]] | None) -> None:
        """`reports`: what it knows of all replicas; None: it lends nothing, and takes rollouts alone."""
        self.name, self.engine, self.queue, self.slots = name, engine, deque[Message](), Slots(SEATS)
        self.messages: dict[str, Message] = {}
        self.begun, self.helped, self.handed_back, self.sizes = 0, 0, 0, [SEATS]

        async def values(*_: object) -> list[ReplicaReport]:
            return reports() if reports is not None else []

        async def hand_back(names: Sequence[str]) -> None:
            for message in [self.messages[name] for name in names if name in self.messages]:
                self._hand_back(message)

        bus: Any = SimpleNamespace(kv=SimpleNamespace(values=values))
        inside: Any = SimpleNamespace(process=SimpleNamespace(progress=self._progress), hand_back=hand_back)
        me: Any = self
        room, clock = lending.Room.of(SEATS, SHARE, 0.0), engine.clock
        made = lender.Lender(bus, ("sim", name), room, self.slots, me, inside, lambda: engine.counts, lambda: clock.now_s)
        self.lender = made if reports is not None else None

    @property
    def unanswered_messages(self) -> dict[str, list[str]]:
        return {first: one.names for first, one in self.messages.items() if all(each.left for each in one.rollouts)}

    @property
    def report(self) -> ReplicaReport:
        busy = {"sequences": float(self.slots.used), reading.AWAKE: 1.0}
        return ReplicaReport.model_construct(replica=self.name, service="rollout", pool="sim", sequences=self.sizes[-1], busy=busy)

    def _progress(self) -> dict[str, int]:
        return {each.name: each.tokens for one in self.messages.values() for each in one.rollouts if each.left}

    def look(self) -> None:
        """What its lender does each second."""
        if self.lender is not None:
            finish(self.lender.look())
            if self.lender.room.sequences != self.sizes[-1]:
                self.sizes.append(self.lender.room.sequences)
            self.take()

    def take(self) -> None:
        while self.queue and self.slots.free > 0:
            self._begin(self.queue.popleft())

    def help(self, others: Sequence["Replica"]) -> None:
        """Take a message that waits elsewhere, if the product's rule says so."""
        for other in [each for each in others if each is not self and each.queue]:
            sibling = reading.Sibling(is_able=True, is_awake=True, waits_s=self.engine.clock.now_s - other.queue[0].came_s)
            taking = reading.taking(sibling, reading.Taking.NOTHING, 0.0, reading.Patience(MOVE_S, 60.0), load=self.slots.load)
            if taking is reading.Taking.HELP and self.slots.free > 0:
                self.helped += 1
                self._begin(other.queue.popleft())
                return

    def _begin(self, message: Message) -> None:
        message.at, self.messages[message.rollouts[0].name] = self, message
        self.begun += 1
        self.slots.take(len(message.rollouts))
        self.engine.waiting.extend(message.rollouts)
        self.engine.wake()

    def end(self, message: Message) -> None:
        """One of its rollouts has ended."""
        self.slots.release(1)
        if not any(one.left for one in message.rollouts):
            del self.messages[message.rollouts[0].name]
        self.take()

    def _hand_back(self, message: Message) -> None:
        self.handed_back += 1
        del self.messages[message.rollouts[0].name]
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
    """A task's steps: each begins `TRAIN_S` after the last trajectory of the one before."""

    def __init__(self, name: str, home: Replica, tail: float, seed: int) -> None:
        self.steps_s: list[float] = []
        self._name, self._home, self._clock, self._random, self._open = name, home, home.engine.clock, Random(seed), 0
        self._tail, self._began_s = tail, 0.0

    def begin(self) -> None:
        self._began_s = self._clock.now_s
        for group in range(GROUPS):
            message = Message([], self._home.queue, self._began_s)
            for member in range(MEMBERS):
                name = f"{self._name}:{len(self.steps_s)}:{group}:{member}"
                message.rollouts.append(Rollout(name, self._tokens(), lambda message=message: self._end(message)))
            self._home.queue.append(message)
        self._open = GROUPS * MEMBERS
        self._home.take()

    def _tokens(self) -> int:
        """Lognormal, so that the longest of a step has about `tail` times the median's tokens."""
        drawn = self._random.lognormvariate(0.0, np.log(self._tail) / SPREADS)
        return max(1, round(MEDIAN * min(drawn, 2 * self._tail)))

    def _end(self, message: Message) -> None:
        assert message.at is not None
        message.at.end(message)
        self._open -= 1
        if not self._open:
            self.steps_s.append(self._clock.now_s - self._began_s)
            self._clock.at(self._clock.now_s + TRAIN_S, self.begin)


@dataclass(frozen=True)
class Case:
    arm: str
    """`fixed`: lending engines only serve. `elastic`: time slices. `ours`."""
    tail: float = 7.0
    factor: float = 1.0
    """By which the step time model is wrong."""
    late_s: float = 0.0
    """Age of reports."""


def many_engines(case: Case, cost: Cost, goals: Goals, rate: float, seconds: float) -> tuple[Window, dict[str, Any]]:
    """`OWN` engines for rollouts and `LENDING` that serve, for a day. `rate`: requests a second that one attains alone."""
    clock, asked, old = events.Events(), list[Asked](), deque[list[ReplicaReport]]([[]])
    decide = DECIDES["slices" if case.arm == "elastic" else "ours"]
    replicas = list[Replica]()
    for number in range(OWN + LENDING):
        lends = number >= OWN and case.arm != "fixed"
        engine = Engine(clock, cost, decide, goals, number, case.factor)
        replicas.append(Replica(str(number), engine, (lambda: old[0]) if lends else None))
    taking = replicas[:OWN] if case.arm == "fixed" else replicas
    tasks = [Task(str(number), taking[number % len(taking)], case.tail, number) for number in range(TASKS)]

    def each_second() -> None:
        old.append([one.report for one in taking])
        while len(old) > 1 + case.late_s:
            old.popleft()
        for one in taking:
            one.look()
        clock.at(clock.now_s + lender.LOOK_S, each_second)

    def look() -> None:
        for one in taking:
            one.help(taking)
        clock.at(clock.now_s + queues.LOOK_S, look)

    for happens in (each_second, look, *(task.begin for task in tasks)):
        clock.at(0.0, happens)
    times = trace.arrivals(trace.MEAN_SHARE * rate * LENDING, seconds, 1, trace.day(seconds))
    send(clock, [one.engine for one in replicas[OWN:]], times, asked)
    clock.run(seconds)
    grows = [[after > before for before, after in pairwise(one.sizes)] for one in taking]
    turns = max(sum(now != last for last, now in pairwise(of_one)) for of_one in grows)
    at_home = 1 - sum(one.helped for one in taking) / max(1, sum(one.begun for one in taking))
    window = Window(
        [one for one in asked if one.is_complete],
        goals,
        seconds,
        sum(one.engine.tokens for one in replicas),
        [took_s for task in tasks for took_s in task.steps_s],
    )
    return window, {"at_home": round(at_home, 3), "turns_per_min": round(60 * turns / seconds, 2)}


# ---------------------------------------------------------------------------------------------------------------------------------- result


CASES = [Case(arm, tail) for tail in (5.0, 10.0) for arm in ("fixed", "elastic", "ours")]
OTHERS = [Case("ours", factor=0.5), Case("ours", factor=1.5), Case("ours", late_s=10.0)]


def run(options: Options) -> dict[str, Any]:
    """Raises: BenchError if a prediction is not near what was measured by these modules."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    return simulated(report.read("coserving-arms"), options)


def simulated(arms: dict[str, Any], options: Options) -> dict[str, Any]:
    """The day on many engines, where `arms` has what one engine does. Raises: BenchError as `measured` and `predictions`."""
    cost, goals, rate, points = measured(arms)
    near = predictions(points, cost, goals, 3.0 if options.small else 60.0)
    rows = dict[Case, Row]()
    for case in (*CASES, *OTHERS):
        window, more = many_engines(case, cost, goals, rate, options.day_s)
        rows[case] = {**asdict(case), **row(f"simulated {case.arm}", [window]), **more}
    about = {"simulation": True, "digest": digest(), "cost": asdict(cost), "points": near, "day_s": options.day_s}
    return about | {"rows": list(rows.values()), "checks": checks(rows)}


def measured(arms: dict[str, Any]) -> tuple[Cost, Goals, float, list[Point]]:
    """What `arms` measured: costs of steps, goals, requests a second that one engine attains alone, and points.

    Raises: BenchError if it did not run, or measured other modules.
    """
    if arms.get("digest") != digest():
        raise BenchError("`arms` measured other modules than these, or nothing: run `python -m bench.coserving arms` first")
    sampled = {(one["load"], one["arm"]): one["tokens_per_s"] for one in arms["rows"]}
    ttft_s, tpot_s, rate = arms["goals_ms"]["ttft"] / 1e3, arms["goals_ms"]["tpot"] / 1e3, arms["attained_per_s"]
    points = [Point(arm, share * rate, sampled[load, arm]) for load, share in LOADS.items() for arm in ARMS if (load, arm) in sampled]
    return Cost.of(ttft_s / TTFT, tpot_s / TPOT, sampled["30 %", "training"]), Goals(ttft_s, tpot_s), rate, points


def predictions(points: Sequence[Point], cost: Cost, goals: Goals, seconds: float, needed: int = POINTS) -> list[Row]:
    """Each point with what is simulated. Raises: BenchError if there are fewer than `needed`, or if one is not `NEAR`."""
    found = list[Row]()
    for number, point in enumerate(points):
        said = one_engine(point, cost, goals, seconds, number).rollout_tokens / seconds
        found.append({**asdict(point), "simulated": round(said), "error": round(said / point.tokens_per_s - 1, 3)})
    far = [f"{one['arm']} at {one['rate']:.1f}/s {one['error']:+.0%}" for one in found if abs(one["error"]) > NEAR]
    if far or len(found) < needed:
        raise BenchError(f"{len(found)} measured points of {needed}; not within {NEAR:.0%}: {', '.join(far) or 'none'}")
    return found


def checks(rows: dict[Case, Row]) -> list[Row]:
    found = list[Row]()
    for tail in (5.0, 10.0):
        fixed, elastic, ours = (rows[Case(arm, tail)] for arm in ("fixed", "elastic", "ours"))
        found += [
            at_least(f"simulated, tail {tail:g}: tokens over fixed", ours["tokens_per_s"] / max(1, fixed["tokens_per_s"]), 1.3),
            at_least(f"simulated, tail {tail:g}: tokens over elastic", ours["tokens_per_s"] / max(1, elastic["tokens_per_s"]), 1.2),
            at_most(f"simulated, tail {tail:g}: time of a step over fixed", ours["step_p50_s"] / fixed["step_p50_s"], 1.0),
        ]
    return found + [at_least(f"simulated: attained, {case}", rows[case]["attained"], 0.99) for case in rows if case.arm == "ours"]
