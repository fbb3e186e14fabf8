"""Goals by HTTP, on the real stack: a day on two samplers against one sampler for each kind of work, and twice what serving alone attains.

Requests are sent at their times whether earlier ones have ended or not, and their times are the client's, from the moment at which each was
due. Samplers have a core each; all other processes, this one too, share both.
"""

import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import aiohttp

from bench.coserving.sums import PROMPT, TOKENS, TPOT, TTFT, Asked, Options, Row, Window, at_least, at_most, attained, row
from bench.coserving.trace import MEAN_SHARE, arrivals, day
from bench.harness.keys import keys_of
from bench.harness.measures.tap import Heard, overheard
from bench.harness.measures.usage import family
from bench.harness.report import ROOT, percentile, spread
from bench.harness.services import local_stack
from bench.isolation import spec
from bench.serving.http import TEXT, Answer, events, session
from bench.serving.stacks import POOL, Serving
from common.bus import Bus
from common.homes import BEGUN, OWN_QUEUE
from common.messages import ReplicaReport, SampleTurns, TurnsSampled
from common.pools import Goals
from common.streams import REPLICAS_BUCKET, queue, rollout_samples
from marlaas.reporting.progress import TrainedStep, step_of
from marlaas.stack.state_files import Stack, StackPlan, log_path
from rollout_svc.coserving import figures

SEQUENCES, SHARE = 64, 0.1
"""Rollout sequences of a sampler, and the pool's `training_share`."""
POOLS = f"""
[{POOL}]
model = "{ROOT}/models/tiny"
context_tokens = 512
adapters = 8
sequences = {SEQUENCES}
kv_cache_gib = 0.25
train_tokens = 16384
%(on)s
[{POOL}.serving]
sequences = 16
adapters = 1
training_share = {SHARE}
ttft_ms = %(ttft_ms).1f
tpot_ms = %(tpot_ms).2f
"""
ACCELERATORS = "ab"
ACCELERATOR = '\n[accelerator.{name}]\ndevice = "cpu"\ncores = "{core}"\nmemory_gib = 2.0\n'
TENANTS, TASKS, WORDS = ("acme", "globex"), 4, 500
SECTIONS = {
    "sampling": {"max_tokens": 160, "temperature": 3.0},  # at 1.0 the tiny model's answers have three tokens
    "algorithm": {"group_size": 8, "groups_per_step": 8, "max_staleness": 1},
}
LENIENT, ATTAINED, GROWTH = Goals(10.0, 1.0), 0.99, 1.25
"""Goals while others are measured; and the fraction that meets them at the highest of rates, each `GROWTH` times the one before."""
LOOK_S, BEGIN_S, STOPPED_S = 2.0, 180.0, 15.0
BURST_S, BURST_RATE = 30.0, 1.5
"""Of the burst after the day, a multiple of what one sampler attains alone."""
BACK = 0.75
"""Fraction of its sequences from which on a sampler's room is back."""
HELP_S = 2.0
"""Seconds after which a waiting turn should go on elsewhere (ROSE)."""


@dataclass
class Sent(Asked):
    """A request by HTTP."""

    tenant: str = TENANTS[0]
    status: int = 0
    took_s: float = 0.0


class Scene(Serving):
    """A running stack whose pool has goals."""

    def __init__(self, stack: Stack, goals: Goals) -> None:
        super().__init__(stack, [stack.gateway.url])
        self.goals, self.data = goals, keys_of(stack).parent

    async def bus(self) -> Bus:
        return await Bus.connect(self.nats_url, "bench-coserving", creds=self.creds)

    def figures(self) -> figures.Figures:
        found = figures.read(next(self.data.rglob("figures/*")))
        assert found is not None, "an engine with goals writes its figures"
        return found

    def rooms(self, since_s: float) -> list[list[tuple[float, int, int]]]:
        """Of each sampler each change of its room: Unix time, sequences before and after."""
        texts = [log_path(self.data, name).read_text() for name in self.names("rollout")]
        changes = [[json.loads(line) for line in text.splitlines() if '"room_changed"' in line] for text in texts]
        timed = [
            [(datetime.fromisoformat(one["timestamp"]).timestamp(), one["before"], one["sequences"]) for one in each] for each in changes
        ]
        return [[one for one in each if one[0] >= since_s] for each in timed]

    async def offer(self, times: Sequence[float], seed: int) -> list[Sent]:
        """Requests at these times from now, of the tenants in turn, and their answers."""
        began_s, asked = time.monotonic(), [Sent(tenant=TENANTS[number % len(TENANTS)]) for number in range(len(times))]
        async with session(self.key) as http:
            each = enumerate(zip(asked, times, strict=True))
            await asyncio.gather(*(self._ask(http, one, began_s + at_s, 100_000 * seed + number) for number, (one, at_s) in each))
        return asked

    async def _ask(self, http: aiohttp.ClientSession, sent: Sent, due_s: float, seed: int) -> None:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        random, found, began_s = Random(seed), Answer(), time.monotonic()
        body = {"model": POOL, "prompt": [random.randrange(3, WORDS) for _ in range(PROMPT)], "max_tokens": TOKENS, "seed": seed}
        try:
            async with aclosing(events(http, self.urls[0], TEXT, body, found, tenant=sent.tenant)) as arriving:
                async for event in arriving:
                    if found.status != 200 or "error" in event:
                        break
                    for choice in event["choices"]:
                        sent.is_complete |= choice.get("finish_reason") is not None
                        if choice.get("text") or (sent.is_complete and sent.first_s is None):  # an answer may be empty
                            sent.came(1, time.monotonic() - due_s)
                    if event.get("usage"):
                        sent.tokens = event["usage"]["completion_tokens"]
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            sent.is_complete = False
        sent.status, sent.took_s = found.status, time.monotonic() - began_s


@contextmanager
def scene(kind: str, goals: Goals) -> Generator[Scene]:
    """`kind`: `one` sampler; `split`, two of which one serves; `homes`, two that do both."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    on = 'generate_on = ["a", "b"]\n' if kind == "homes" else ""
    text = POOLS % {"on": on, "ttft_ms": 1e3 * goals.ttft_s, "tpot_ms": 1e3 * goals.tpot_s}
    text += "".join(ACCELERATOR.format(name=name, core=core) for name, core in zip(ACCELERATORS, cores, strict=True)) if on else ""

    def changed(plan: StackPlan) -> StackPlan:
        own = iter(zip(("serving", "rollouts"), cores, strict=True))
        services = list(plan.services)
        for place, one in enumerate(services):
            if kind == "split" and "rollout_svc" in one.argv:
                takes, core = next(own)
                env = one.env | {"MARLAAS_ROLLOUT_TAKES": takes, "MARLAAS_ROLLOUT_CORES": str(core)}
                services[place] = one.model_copy(update={"env": env})
        return plan.model_copy(update={"services": services})

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        (path := Path(folder) / "pools.toml").write_text(text)
        with local_stack(path, samplers=2 if kind == "split" else 1, changed=changed) as stack:
            yield Scene(stack, goals)


@dataclass
class Training:
    """Tasks that train, and what they and the samplers did."""

    steps: dict[str, list[TrainedStep]] = field(default_factory=dict[str, list[TrainedStep]])
    """By task."""
    at_home: int = 0
    """Messages that samplers had from their own queues, summed over all reports."""
    begun: int = 0
    """All that they had."""
    states: set[str] = field(default_factory=set[str])
    """Of tasks at the end."""

    def window(self, asked: Sequence[Asked], goals: Goals, since_s: float, until_s: float) -> Window:
        """With tokens and times of the steps that ended in it."""
        within = [(one, after) for of_one in self.steps.values() for one, after in pairwise(of_one) if since_s <= after.at_s <= until_s]
        tokens, steps_s = sum(after.sampled_tokens for _, after in within), [after.at_s - one.at_s for one, after in within]
        return Window(list(asked), goals, until_s - since_s, tokens, steps_s)


@asynccontextmanager
async def training(at: Scene) -> AsyncGenerator[Training]:
    """`TASKS` tasks of equal tenants, each of which has trained a step, until the block ends."""
    found, has_begun = Training(), asyncio.Event()
    specs = [spec(f"task-{n}", n, 10_000, n % 3, SECTIONS).model_copy(update={"tenant": TENANTS[n % 2]}) for n in range(TASKS)]

    async def look() -> None:
        while True:
            for busy in [one.busy for one in await bus.kv.values(REPLICAS_BUCKET, ReplicaReport) if one.service == "rollout"]:
                own = {key.replace(OWN_QUEUE, BEGUN) for key in busy if key.startswith(f"{OWN_QUEUE}@")}
                counts = {key: int(count) for key, count in busy.items() if key.partition("@")[0] == BEGUN}
                found.at_home += sum(count for key, count in counts.items() if key in own)
                found.begun += sum(counts.values())
            await asyncio.sleep(LOOK_S)

    async def follow(tasks: Sequence[str]) -> None:
        async for event in client.watch(*tasks):
            if event.event == "step":
                found.steps.setdefault(event.task, []).append(step_of(event))
                if len(found.steps) == TASKS:
                    has_begun.set()

    async with at.client() as client, await at.bus() as bus:
        tasks = [await client.submit(one) for one in specs]
        beside = [asyncio.create_task(one) for one in (follow(tasks), look())]
        try:
            async with asyncio.timeout(BEGIN_S):
                await has_begun.wait()
            yield found
            found.states = {(await client.status(task)).state for task in tasks}
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _with_tenants(at: Scene) -> None:
    """Tenants exist once each has submitted a task."""
    async with at.client() as client:
        for tenant in TENANTS:
            await client.wait(await client.submit(spec("first", 1, 1, 0, {}).model_copy(update={"tenant": tenant})))


async def _alone(at: Scene, seconds: float) -> Goals:
    """Goals as multiples of what the idle stack takes, at two requests a second."""
    await _with_tenants(at)
    await at.offer(arrivals(2.0, seconds / 3, 1), 1)
    asked = await at.offer(arrivals(2.0, seconds, 2), 2)
    return Goals(TTFT * median(one.first_s or 0.0 for one in asked), TPOT * median(one.tpot_s for one in asked))


async def _attained_rate(at: Scene, seconds: float) -> tuple[float, list[Row]]:
    """The highest rate of those tried at which serving alone attains its goals, and each rate's row. A rate that fails has a second try."""
    rows, rate, failed = list[Row](), 4.0, 0
    while failed < 2:
        asked = await at.offer(arrivals(rate, seconds, len(rows)), len(rows))
        rows.append({"rate": round(rate, 2)} | row("alone", [Window(list(asked), at.goals, seconds)]))
        failed = 0 if rows[-1]["attained"] >= ATTAINED else failed + 1
        rate *= 1.0 if failed else GROWTH
    return rate / GROWTH, rows


# ------------------------------------------------------------------------------------------------------------------------------ a day


async def _day(at: Scene, kind: str, rate: float, seconds: float) -> dict[str, Any]:
    """A day of requests beside tasks; with homes also a burst after it, and then a stopped sampler."""
    await _with_tenants(at)
    async with training(at) as tasks:
        began_s, at_home, begun = time.time(), tasks.at_home, tasks.begun
        asked = await at.offer(arrivals(MEAN_SHARE * rate, seconds, 3, day(seconds)), 3)
        ended_s = time.time()
        found: dict[str, Any] = {"row": row(kind, [tasks.window(asked, at.goals, began_s, ended_s)]), "outcomes": outcomes(asked)}
        if kind == "homes":
            found |= {"at_home": round((tasks.at_home - at_home) / max(1, tasks.begun - begun), 4)}
            found |= {"turns_per_min": [round(60.0 * turns(of_one) / seconds, 3) for of_one in at.rooms(began_s)]}
            burst_s = min(BURST_S, seconds / 10)
            await at.offer(arrivals(BURST_RATE * rate, burst_s, 4), 4)
            burst_ended_s = time.time()
            await asyncio.sleep(burst_s + 10.0)
            found["back_s"] = [back_s(of_one, burst_ended_s) for of_one in at.rooms(burst_ended_s - burst_s)]
            found["stopped"] = await _stopped(at)
    return found | {"states": sorted(tasks.states)}


def outcomes(asked: Sequence[Sent]) -> dict[str, int]:
    """Numbers of requests by status, and whether they have all their tokens."""
    return dict(Counter(f"{one.status} {'complete' if one.is_complete else 'not complete'}" for one in asked))


def turns(changes: Sequence[tuple[float, int, int]]) -> int:
    """Changes of direction."""
    grows = [after > before for _, before, after in changes]
    return sum(now != last for last, now in pairwise(grows))


def back_s(changes: Sequence[tuple[float, int, int]], ended_s: float) -> float:
    """Seconds from a burst's end until the room is back: 0 if it never was below, infinite if it never came back."""
    if not changes or changes[-1][2] < BACK * SEQUENCES:
        return float("inf") if changes else 0.0
    return round(max([0.0, *(at_s - ended_s for at_s, before, _ in changes if before < BACK * SEQUENCES)]), 1)


async def _stopped(at: Scene) -> dict[str, Any]:
    """SIGSTOP of the second sampler, and when the turns of its tasks went on."""
    own = queue(POOL, ACCELERATORS[-1])
    async with await at.bus() as bus, overheard(at.nats_url, at.creds) as heard:
        await asyncio.sleep(STOPPED_S)
        processes, stopped_s = family(at.process(at.names("rollout")[-1])), time.time()
        for one in processes:
            one.suspend()
        pending = (await bus.streams.queue(rollout_samples(own))).pending
        await asyncio.sleep(2 * STOPPED_S)
        for one in [each for each in processes if each.is_running()]:
            one.resume()
    return delays(heard, own, stopped_s, pending)


def delays(heard: Sequence[Heard], own: str, stopped_s: float, pending: int) -> dict[str, Any]:
    """Seconds until turns of a queue were answered after its sampler stopped; those without an answer count as answered at the end.

    `pending`: messages of the queue, its latest ones, that no process had taken then.
    """
    asked = [(one.at_s, SampleTurns.decode(one.body)) for one in heard if one.subject.startswith(f"prompts.sample.{own}.")]
    answers = [(one.at_s, TurnsSampled.decode(one.body)) for one in heard if one.subject.startswith("trajectories.turn.")]
    answered = {turn: at_s for at_s, said in reversed(answers) for turn in _turns(said)}
    messages = [(at_s, [answered.get(turn, heard[-1].at_s) for turn in _turns(said)]) for at_s, said in asked]
    took_s = [end_s - at_s for at_s, ends_s in messages for end_s in ends_s if end_s < stopped_s]
    left = [late for at_s, ends_s in messages if at_s < stopped_s and (late := [one - stopped_s for one in ends_s if one > stopped_s])]
    begun, waiting = left[: max(0, len(left) - pending)], left[max(0, len(left) - pending) :]
    later = [[one - at_s for one in ends_s] for at_s, ends_s in messages if at_s >= stopped_s]
    kinds = {"begun": begun, "waiting": waiting, "later": later}
    found = {name: {"turns": sum(map(len, of)), **spread([one for each in of for one in each])} for name, of in kinds.items()}
    return {"turn_p90_s": round(percentile(took_s, 0.9), 2), **found}


def _turns(message: SampleTurns | TurnsSampled) -> list[tuple[str, int, int, int]]:
    return [(message.group.task, message.group.group, one.member, one.turn) for one in message.members]


# --------------------------------------------------------------------------------------------------------------- overload, and the result


async def _overload(at: Scene, rate: float, seconds: float) -> dict[str, Any]:
    """Twice what serving alone attains, of equal tenants, beside tasks."""
    async with training(at) as tasks:
        before, began_s = at.figures(), time.time()
        asked = await at.offer(arrivals(2 * rate, seconds, 5), 5)
        after, ended_s = at.figures(), time.time()
    admitted = [one for one in asked if one.status == 200]
    refused = [1e3 * one.took_s for one in asked if one.status == 503]
    wanted, withheld = after.rollout_steps - before.rollout_steps, after.withheld_steps - before.withheld_steps
    window = tasks.window(admitted, at.goals, began_s, ended_s)
    return {
        "row": row("overload", [window]),
        "outcomes": outcomes(asked),
        "refusal_ms": spread(refused),
        "admitted": [sum(one.tenant == tenant for one in admitted) for tenant in TENANTS],
        "attained": round(attained([window]), 4),
        "training_share": round(1 - withheld / wanted, 4) if wanted else 1.0,
        "states": sorted(tasks.states),
    }


def run(options: Options) -> dict[str, Any]:
    goals, rate, rows = options.goals or LENIENT, 4.0 if options.small else options.rate, list[Row]()
    if options.goals is None and not options.small:
        with scene("one", goals) as at:
            goals = asyncio.run(_alone(at, options.seconds))
    with scene("one", goals) as at:
        asyncio.run(_with_tenants(at))
        if rate is None:
            rate, rows = asyncio.run(_attained_rate(at, options.seconds))
        overload = asyncio.run(_overload(at, rate, options.overload_s))
    days = dict[str, dict[str, Any]]()
    for kind in ("split", "homes"):
        with scene(kind, goals) as at:
            days[kind] = asyncio.run(_day(at, kind, rate, options.day_s))
    return {
        "goals_ms": {"ttft": round(1e3 * goals.ttft_s, 1), "tpot": round(1e3 * goals.tpot_s, 2)},
        "serving_alone_per_s": round(rate, 2),
        "day_s": options.day_s,
        "overload_s": options.overload_s,
        "rows": [*rows, *(one["row"] for one in (*days.values(), overload))],
        "checks": checks(goals, days["split"], days["homes"], overload),
        "overload": overload,
        **days,
    }


def checks(goals: Goals, split: dict[str, Any], homes: dict[str, Any], overload: dict[str, Any]) -> list[Row]:
    """What was seen against what was wanted."""
    of_day, stopped = homes["row"], homes["stopped"]
    soon_s, lease_s = HELP_S + stopped["turn_p90_s"], rollout_samples(POOL).ack_wait_s
    failed = [state for one in (split, homes, overload) for state in one["states"] if state != "running"]
    smaller, larger = sorted(overload["admitted"])
    return [
        at_least("day: rollout tokens over one sampler for each", of_day["tokens_per_s"] / max(1, split["row"]["tokens_per_s"]), 1.3),
        at_most("day: p99 of first tokens over the goal", of_day["ttft_p99"] / 1e3 / goals.ttft_s, 1.0),
        at_most("day: p99 of further tokens over the goal", of_day["tpot_p99"] / 1e3 / goals.tpot_s, 1.0),
        at_least("day: turns at home", homes["at_home"], 0.9),
        at_most("day: changes of direction a minute", max(homes["turns_per_min"]), 1.0),
        at_most("burst: seconds until room is back", max(homes["back_s"]), 20.0),
        at_most("stopped: seconds to the last waiting turn", stopped["waiting"]["max"], soon_s),
        at_most("stopped: seconds to turns sent later, p90", stopped["later"]["p90"], soon_s),
        at_most("stopped: seconds to the last begun turn", stopped["begun"]["max"], soon_s + lease_s),
        at_most("overload: p99 of refusals, ms", overload["refusal_ms"]["p99"], 50.0),
        at_least("overload: admitted requests that met both goals", overload["attained"], 0.95),
        at_least("overload: training's share of its steps", overload["training_share"], SHARE),
        at_least("overload: admitted of one tenant over the other's", smaller / max(1, larger), 0.9),
        at_most("tasks' states other than running", len(failed), 0),
    ]
