"""Goals by HTTP, on the real stack: a day on two samplers against one sampler for each kind of work, and twice what serving alone attains.

Requests are sent at their times whether earlier ones have ended or not, and their times are the client's, from the moment at which each was
due. Samplers have a core each; all other processes, this one too, share both.
"""

import asyncio
import json
import os
import re
import tempfile
import time
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

from bench.coserving.sums import PROMPT, TOKENS, Asked, Options, Row, Window, at_least, at_most, attained, row
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
from marlaas.reporting.progress import step_of
from marlaas.stack.state_files import Stack, StackPlan, log_path
from rollout_svc.coserving import figures

POOLS = """
[{pool}]
model = "{root}/models/tiny"
context_tokens = 512
adapters = 8
sequences = {sequences}
kv_cache_gib = 0.25
train_tokens = 16384
{on}

[{pool}.serving]
sequences = 16
adapters = 1
ttft_ms = {ttft_ms}
tpot_ms = {tpot_ms}
"""
ACCELERATOR = '\n[accelerator.{name}]\ndevice = "cpu"\ncores = "{core}"\nmemory_gib = 2.0\n'
SEQUENCES, SHARE = 64, 0.1
"""Rollout sequences of a sampler, and the pool's `training_share`."""
ACCELERATORS = "ab"
TENANTS, TASKS = ("acme", "globex"), 4
WORDS = 500
LENIENT = Goals(10.0, 1.0)
TTFT, TPOT = 5.0, 2.0
"""Goals, as multiples of what the idle stack takes."""
GROWTH = 1.25
"""Factor between the rates tried until serving alone attains less than `ATTAINED`."""
ATTAINED = 0.99
LOOK_S = 2.0
LEASE_S = rollout_samples(POOL).ack_wait_s
HELP_S = 2.0
"""Seconds after which a waiting turn should go on elsewhere (ROSE)."""
STOPPED_S = 30.0


@dataclass
class Sent(Asked):
    """A request by HTTP."""

    tenant: str = TENANTS[0]
    status: int = 0
    took_s: float = 0.0


@dataclass
class Scene:
    """A running stack."""

    stack: Stack
    serving: Serving
    goals: Goals

    @property
    def data(self) -> Path:
        return keys_of(self.stack).parent

    @property
    def samplers(self) -> list[str]:
        return self.serving.names("rollout")

    async def bus(self) -> Bus:
        return await Bus.connect(self.serving.nats_url, "bench-coserving", creds=self.serving.creds)

    async def rollout_tokens(self, http: aiohttp.ClientSession) -> float:
        """Tokens of rollouts so far, over all samplers."""
        found = 0.0
        for name in self.samplers:
            async with http.get(f"http://127.0.0.1:{self.stack.component(name).http_port}/metrics") as answer:
                counted = re.search(r"^marlaas_rollout_sampled_tokens_total (\S+)$", await answer.text(), re.MULTILINE)
                found += float(counted[1]) if counted is not None else 0.0
        return found

    def room_changes(self, since_s: float) -> dict[str, list[tuple[float, int, int]]]:
        """Unix time, sequences before, and sequences of each change of a sampler's room."""
        found: dict[str, list[tuple[float, int, int]]] = {}
        for name in self.samplers:
            lines = [json.loads(line) for line in log_path(self.data, name).read_text().splitlines() if '"room_changed"' in line]
            changes = [(datetime.fromisoformat(one["timestamp"]).timestamp(), one["before"], one["sequences"]) for one in lines]
            found[name] = [one for one in changes if one[0] >= since_s]
        return found


@contextmanager
def scene(kind: str, goals: Goals) -> Generator[Scene]:
    """`kind`: `one` sampler; two that are `split`, one for each kind of work; two with both kinds of work and `homes`."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    on = 'generate_on = ["a", "b"]' if kind == "homes" else ""
    goals_ms = {"ttft_ms": round(1e3 * goals.ttft_s, 1), "tpot_ms": round(1e3 * goals.tpot_s, 2)}
    text = POOLS.format(pool=POOL, root=ROOT, sequences=SEQUENCES, on=on, **goals_ms)
    if on:
        text += "".join(ACCELERATOR.format(name=name, core=core) for name, core in zip(ACCELERATORS, cores, strict=True))

    def changed(plan: StackPlan) -> StackPlan:
        samplers = [one.name for one in plan.services if "rollout_svc" in one.argv]
        own = {
            name: {"MARLAAS_ROLLOUT_TAKES": takes, "MARLAAS_ROLLOUT_CORES": str(core)}
            for name, takes, core in zip(samplers, ("serving", "rollouts"), cores, strict=False)
        }
        services = [one.model_copy(update={"env": one.env | own.get(one.name, {})}) for one in plan.services]
        return plan.model_copy(update={"services": services}) if kind == "split" else plan

    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        (path := Path(folder) / "pools.toml").write_text(text)
        with local_stack(path, samplers=2 if kind == "split" else 1, changed=changed) as stack:
            yield Scene(stack, Serving(stack, [stack.gateway.url]), goals)


@dataclass
class Training:
    """Tasks that train, and what they and the samplers did."""

    tasks: list[str]
    ends_s: dict[str, list[float]]
    """Unix times at which each task's steps ended."""
    at_home: int = 0
    """Messages with turns that a sampler had from its own queue, over all reports."""
    begun: int = 0
    """All that it had."""
    states: dict[str, str] = field(default_factory=dict[str, str])
    """States of tasks at the end."""

    def steps_s(self, since_s: float, until_s: float) -> list[float]:
        return [end - begin for ends in self.ends_s.values() for begin, end in pairwise(ends) if since_s <= end <= until_s]


@asynccontextmanager
async def training(at: Scene, count: int) -> AsyncGenerator[Training]:
    """`count` tasks of equal tenants, each of which has trained a step, until the block ends."""
    algorithm = {"group_size": 8, "groups_per_step": 8, "max_staleness": 1}
    sections = {"sampling": {"max_tokens": 160}, "algorithm": algorithm}
    async with at.serving.client() as client, await at.bus() as bus:
        specs = [spec(f"task-{n}", n, 10_000, n % 3, sections).model_copy(update={"tenant": TENANTS[n % 2]}) for n in range(count)]
        found = Training([await client.submit(one) for one in specs], {})
        has_begun = asyncio.Event()

        async def follow() -> None:
            async for event in client.watch(*found.tasks):
                if event.event == "step":
                    found.ends_s.setdefault(event.task, []).append(step_of(event).at_s)
                    if len(found.ends_s) == count:
                        has_begun.set()

        async def look() -> None:
            while True:
                reports = await bus.kv.values(REPLICAS_BUCKET, ReplicaReport)
                for busy in [one.busy for one in reports if one.service == "rollout"]:
                    own = {key.replace(OWN_QUEUE, BEGUN) for key in busy if key.startswith(f"{OWN_QUEUE}@")}
                    found.at_home += sum(int(busy.get(key, 0)) for key in own)
                    found.begun += sum(int(count) for key, count in busy.items() if key.partition("@")[0] == BEGUN)
                await asyncio.sleep(LOOK_S)

        beside = [asyncio.create_task(one) for one in (follow(), look())]
        try:
            async with asyncio.timeout(180):
                await has_begun.wait()
            yield found
            found.states = {task: (await client.status(task)).state for task in found.tasks}
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _ask(http: aiohttp.ClientSession, url: str, sent: Sent, due_s: float, number: int) -> None:
    """Ask once and note what comes. `due_s`: when it is due to be sent, on the monotonic clock."""
    await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    random, found, began_s = Random(number), Answer(), time.monotonic()
    prompt = [random.randrange(3, WORDS) for _ in range(PROMPT)]
    body = {"model": POOL, "prompt": prompt, "max_tokens": TOKENS, "seed": number, "stream": True}
    try:
        async with aclosing(events(http, url, TEXT, body, found, tenant=sent.tenant)) as arriving:
            async for event in arriving:
                if found.status != 200 or "error" in event:
                    break
                for choice in event["choices"]:
                    if choice.get("text"):
                        sent.came(1, time.monotonic() - due_s)
                    sent.is_complete |= choice.get("finish_reason") is not None
                if event.get("usage"):
                    sent.tokens = event["usage"]["completion_tokens"]
    except (aiohttp.ClientError, ConnectionError, TimeoutError):
        sent.is_complete = False
    sent.status, sent.took_s = found.status, time.monotonic() - began_s


async def _offered(
    at: Scene, http: aiohttp.ClientSession, times: Sequence[float], seed: int, tenants: Sequence[str] = TENANTS
) -> list[Sent]:
    """Requests at these times from now, of the tenants in turn, and their answers."""
    began_s, asked = time.monotonic(), [Sent(tenant=tenants[number % len(tenants)]) for number in range(len(times))]
    url = at.serving.urls[0]
    await asyncio.gather(
        *(
            _ask(http, url, one, began_s + at_s, 100_000 * seed + number)
            for number, (one, at_s) in enumerate(zip(asked, times, strict=True))
        )
    )
    return asked


# ------------------------------------------------------------------------------------------------------------ alone, and what it attains


async def _known(at: Scene) -> None:
    """The tenants exist once each has submitted a task."""
    async with at.serving.client() as client:
        for tenant in TENANTS:
            await client.wait(await client.submit(spec("first", 1, 1, 0, {}).model_copy(update={"tenant": tenant})))


async def _alone(at: Scene, seconds: float) -> Goals:
    """Goals as multiples of what the idle stack takes, at two requests a second."""
    await _known(at)
    async with session(at.serving.key) as http:
        await _offered(at, http, arrivals(2.0, 3.0, 1), 1)
        asked = await _offered(at, http, arrivals(2.0, seconds, 2), 2)
    return Goals(TTFT * median(one.first_s or 0.0 for one in asked), TPOT * median(one.tpot_s for one in asked))


async def _attained_rate(at: Scene, seconds: float) -> tuple[float, list[Row]]:
    """The highest rate of those tried at which serving alone attains its goals, and each rate's row. A rate that fails has a second try."""
    rows, rate, failed = list[Row](), 4.0, 0
    async with session(at.serving.key) as http:
        while failed < 2:
            asked = await _offered(at, http, arrivals(rate, seconds, len(rows)), len(rows))
            rows.append({"rate": round(rate, 2)} | row("alone", [Window(list(asked), at.goals, seconds)]))
            failed = 0 if rows[-1]["attained"] >= ATTAINED else failed + 1
            rate *= 1.0 if failed else GROWTH
    return rate / GROWTH, rows


# ---------------------------------------------------------------------------------------------------------------------------- a day


async def _day(at: Scene, kind: str, rate: float, options: Options) -> dict[str, Any]:
    """A day of requests beside tasks; with homes a burst after it, and a stopped sampler."""
    await _known(at)
    seconds = options.day_s
    async with session(at.serving.key) as http, training(at, TASKS) as tasks:
        began_s, before, at_home = time.time(), await at.rollout_tokens(http), (tasks.at_home, tasks.begun)
        asking = asyncio.create_task(_offered(at, http, arrivals(MEAN_SHARE * rate, seconds, 3, day(seconds)), 3))
        await asyncio.sleep(seconds)
        ended_s, sampled = time.time(), await at.rollout_tokens(http) - before
        window = Window(list(await asking), at.goals, ended_s - began_s, round(sampled), tasks.steps_s(began_s, ended_s))
        found: dict[str, Any] = {"row": row(kind, [window]), "steps": len(window.steps_s)}
        if kind == "homes":
            here, all_ = tasks.at_home - at_home[0], tasks.begun - at_home[1]
            found |= {"at_home": round(here / max(1, all_), 4), "turns_per_min": _turns_per_min(at.room_changes(began_s), seconds)}
            burst_s = min(30.0, seconds / 10)
            await _offered(at, http, arrivals(1.5 * rate, burst_s, 4), 4)  # three quarters of what both attain
            burst_ended_s = time.time()
            await asyncio.sleep(burst_s + 10.0)
            found["back_s"] = _back_s(at.room_changes(burst_ended_s - burst_s), burst_ended_s)
            found["stopped"] = await _stopped(at, STOPPED_S if not options.small else 15.0)
    return found | {"states": sorted(set(tasks.states.values()))}


def _turns_per_min(changes: dict[str, list[tuple[float, int, int]]], seconds: float) -> float:
    """Changes of direction a minute, of the sampler with the most."""
    most = 0
    for of_one in changes.values():
        grows = [after > before for _, before, after in of_one]
        most = max(most, sum(now != last for last, now in pairwise(grows)))
    return round(60.0 * most / seconds, 3)


def _back_s(changes: dict[str, list[tuple[float, int, int]]], ended_s: float) -> dict[str, float | None]:
    """Seconds from a burst's end until each sampler that had shrunk has three quarters of its sequences; None: it did not."""
    found: dict[str, float | None] = {}
    for name, of_one in changes.items():
        if any(after < 0.75 * SEQUENCES for *_, after in of_one):
            back = [at_s - ended_s for at_s, _, after in of_one if after >= 0.75 * SEQUENCES and at_s > ended_s]
            found[name] = (round(back[0], 1) if back else None) if of_one[-1][0] > ended_s or of_one[-1][2] < 0.75 * SEQUENCES else 0.0
    return found


# -------------------------------------------------------------------------------------------------------------- a sampler is stopped

Turn = tuple[str, int, int, int]


async def _stopped(at: Scene, seconds: float) -> dict[str, Any]:
    """SIGSTOP of the second sampler, and when the turns of its tasks went on."""
    name, own = at.samplers[-1], queue(POOL, ACCELERATORS[-1])
    async with await at.bus() as bus, overheard(*_tapped(at)) as heard:
        await asyncio.sleep(seconds / 2)
        processes = family(at.serving.process(name))
        stopped_s = time.time()
        for one in processes:
            one.suspend()
        pending = (await bus.streams.queue(rollout_samples(own))).pending
        await asyncio.sleep(seconds)
        for one in processes:
            if one.is_running():
                one.resume()
    return delays(heard, own, stopped_s, pending)


def _tapped(at: Scene) -> tuple[str, Path]:
    return at.serving.nats_url, at.serving.creds


def delays(heard: Sequence[Heard], own: str, stopped_s: float, pending: int) -> dict[str, Any]:
    """When turns of a queue were answered whose sampler stopped. `pending`: its latest messages that no process had taken."""
    messages = list[tuple[float, list[Turn]]]()
    answered: dict[Turn, float] = {}
    for one in heard:
        if one.subject.startswith(f"prompts.sample.{own}."):
            asked = SampleTurns.decode(one.body)
            messages.append((one.at_s, [(asked.group.task, asked.group.group, each.member, each.turn) for each in asked.members]))
        elif one.subject.startswith("trajectories.turn."):
            said = TurnsSampled.decode(one.body)
            for each in said.members:
                answered.setdefault((said.group.task, said.group.group, each.member, each.turn), one.at_s)
    took = [answered[turn] - at_s for at_s, turns in messages for turn in turns if turn in answered and answered[turn] < stopped_s]
    open_ = [turns for at_s, turns in messages if at_s < stopped_s and any(answered.get(turn, 1e18) > stopped_s for turn in turns)]
    begun, waiting = (open_[:-pending], open_[-pending:]) if pending else (open_, [])

    def after_s(of: Sequence[Sequence[Turn]]) -> dict[str, float | int]:
        turns = [turn for each in of for turn in each if answered.get(turn, 1e18) > stopped_s]
        late = [answered[turn] - stopped_s for turn in turns if turn in answered]
        first = min((answered[turn] - stopped_s for turn in turns if turn in answered), default=0.0)
        return {
            "turns": len(turns), "answered": len(late), "first_s": round(first, 2),
            "p50_s": round(percentile(late, 0.5), 2), "last_s": round(max(late, default=0.0), 2),
        }  # fmt: skip

    later = [turns for at_s, turns in messages if at_s >= stopped_s]
    return {"turn_p90_s": round(percentile(took, 0.9), 2), "waiting": after_s(waiting), "begun": after_s(begun), "later": after_s(later)}


# ----------------------------------------------------------------------------------------------------------------------- overload


async def _overload(at: Scene, rate: float, seconds: float) -> dict[str, Any]:
    """Twice what serving alone attains, from two equal tenants, beside tasks."""
    async with session(at.serving.key) as http, training(at, TASKS) as tasks:
        before, tokens = _figures(at), await at.rollout_tokens(http)
        asked = await _offered(at, http, arrivals(2 * rate, seconds, 5), 5)
        after, sampled = _figures(at), await at.rollout_tokens(http) - tokens
        ended_s = time.time()
    admitted = [one for one in asked if one.status == 200]
    refusals = [1e3 * one.took_s for one in asked if one.status == 503]
    by_tenant = [sum(one.tenant == tenant for one in admitted) for tenant in TENANTS]
    wanted, withheld = after.rollout_steps - before.rollout_steps, after.withheld_steps - before.withheld_steps
    return {
        "row": row("overload", [Window(list(admitted), at.goals, seconds, round(sampled), tasks.steps_s(ended_s - seconds, ended_s))]),
        "refused": len(refusals),
        "otherwise": len(asked) - len(admitted) - len(refusals),
        "refusal_ms": spread(refusals),
        "admitted": by_tenant,
        "attained": attained([Window(list(admitted), at.goals, seconds)]),
        "training_share": round(1 - withheld / wanted, 4) if wanted else 1.0,
        "states": sorted(set(tasks.states.values())),
    }


def _figures(at: Scene) -> figures.Figures:
    found = figures.read(next(at.data.rglob("figures/*")))
    assert found is not None, "an engine with goals writes its figures"
    return found


# ---------------------------------------------------------------------------------------------------------------------------- result


def run(options: Options) -> dict[str, Any]:
    goals, rate, rows = LENIENT, 4.0 if options.small else options.rate, list[Row]()
    if options.goals is not None:
        goals = options.goals
    elif not options.small:
        with scene("one", LENIENT) as at:
            goals = asyncio.run(_alone(at, options.seconds))
    with scene("one", goals) as at:
        asyncio.run(_known(at))
        if rate is None:
            rate, rows = asyncio.run(_attained_rate(at, options.seconds))
        overload = asyncio.run(_overload(at, rate, options.overload_s))
    days = dict[str, dict[str, Any]]()
    for kind in ("split", "homes"):
        with scene(kind, goals) as at:
            days[kind] = asyncio.run(_day(at, kind, rate, options))
    return {
        "goals_ms": {"ttft": round(1e3 * goals.ttft_s, 1), "tpot": round(1e3 * goals.tpot_s, 2)},
        "serving_alone_per_s": round(rate, 2),
        "day_s": options.day_s,
        "overload_s": options.overload_s,
        "rows": [*rows, days["split"]["row"], days["homes"]["row"], overload["row"]],
        "checks": checks(goals, days["split"], days["homes"], overload),
        "overload": overload,
        **days,
    }


def checks(goals: Goals, split: dict[str, Any], homes: dict[str, Any], overload: dict[str, Any]) -> list[Row]:
    """What was seen against what was wanted."""
    day_row, stopped = homes["row"], homes["stopped"]
    slack_s = HELP_S + stopped["turn_p90_s"]
    failed = sum(one["states"] != ["running"] for one in (split, homes, overload))
    return [
        at_least("day: rollout tokens over one sampler for each", day_row["tokens_per_s"] / max(1, split["row"]["tokens_per_s"]), 1.3),
        at_most("day: p99 to the first token, of its goal", day_row["ttft_p99"] / (1e3 * goals.ttft_s), 1.0),
        at_most("day: p99 of the mean between tokens, of its goal", day_row["tpot_p99"] / (1e3 * goals.tpot_s), 1.0),
        at_least("day: turns at home", homes["at_home"], 0.9),
        at_most("day: changes of direction a minute", homes["turns_per_min"], 1.0),
        at_most(
            "burst: seconds until the room is back",
            max((float("inf") if s is None else s for s in homes["back_s"].values()), default=0.0),
            20.0,
        ),
        at_most("stopped: last waiting turn answered, s", stopped["waiting"]["last_s"], slack_s),
        at_most("stopped: last begun turn answered, s", stopped["begun"]["last_s"], slack_s + LEASE_S),
        at_most("overload: p99 of refusals, ms", overload["refusal_ms"]["p99"], 50.0),
        at_least("overload: admitted that met both goals", overload["attained"], 0.95),
        at_least("overload: training's share of its steps", overload["training_share"], SHARE),
        at_least("overload: smaller tenant's admitted over the larger's", min(overload["admitted"]) / max(1, *overload["admitted"]), 0.9),
        at_most("runs with a task that failed", failed, 0),
    ]
