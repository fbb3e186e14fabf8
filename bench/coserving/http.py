"""Goals by HTTP, on the real stack: a day on two samplers against one sampler for each kind of work, and twice what serving alone attains.

Requests are sent at their times whether earlier ones have ended or not, and their times are the client's, from the moment at which each was
due. Samplers have a core each; all other processes, this one too, share both.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from bench.coserving.stacks import ACCELERATORS, SEQUENCES, SHARE, TENANTS, Scene, Sent, scene, training, with_tenants
from bench.coserving.sums import TPOT, TTFT, Options, Row, Window, at_least, at_most, attained, row
from bench.coserving.trace import MEAN_SHARE, arrivals, day
from bench.harness.measures.tap import Heard, overheard
from bench.harness.measures.usage import family
from bench.harness.report import percentile, spread
from bench.serving.stacks import POOL
from common.messages import SampleTurns, TurnsSampled
from common.pools import Goals
from common.streams import queue, rollout_samples

LENIENT, ATTAINED, GROWTH = Goals(10.0, 1.0), 0.99, 1.25
"""Goals while others are measured; and the fraction that meets them at the highest of rates, each `GROWTH` times the one before."""
STOPPED_S = 15.0
BURST_S, BURST_RATE = 30.0, 1.5
"""Of the burst after the day, a multiple of what one sampler attains alone."""
BACK = 0.75
"""Fraction of its sequences from which on a sampler's room is back."""
HELP_S = 2.0
"""Seconds after which a waiting turn should go on elsewhere (ROSE)."""


async def _alone(at: Scene, seconds: float) -> Goals:
    """Goals as multiples of what the idle stack takes, at two requests a second."""
    await with_tenants(at)
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
    await with_tenants(at)
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
            found["stopped"] = await _stopped(at, min(STOPPED_S, seconds / 4))
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


async def _stopped(at: Scene, seconds: float) -> dict[str, Any]:
    """SIGSTOP of the sampler that is home to most turns after `seconds`, for twice as long, and when these went on."""
    async with await at.bus() as bus, overheard(at.nats_url, at.creds) as heard:
        await asyncio.sleep(seconds)
        queues = [queue(POOL, name) for name in ACCELERATORS]
        own = max(queues, key=lambda each: sum(one.subject.startswith(f"prompts.sample.{each}.") for one in heard))
        processes, stopped_s = family(at.process(at.names("rollout")[queues.index(own)])), time.time()
        for one in processes:
            one.suspend()
        pending = (await bus.streams.queue(rollout_samples(own))).pending
        await asyncio.sleep(2 * seconds)
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
        asyncio.run(with_tenants(at))
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
        at_least("stopped: turns that it had begun", stopped["begun"]["turns"], 1),
        at_most("stopped: seconds to the last waiting turn", stopped["waiting"]["max"], soon_s),
        at_most("stopped: seconds to turns sent later, p90", stopped["later"]["p90"], soon_s),
        at_most("stopped: seconds to the last begun turn", stopped["begun"]["max"], soon_s + lease_s),
        at_most("overload: p99 of refusals, ms", overload["refusal_ms"]["p99"], 50.0),
        at_least("overload: admitted requests that met both goals", overload["attained"], 0.95),
        at_least("overload: training's share of its steps", overload["training_share"], SHARE),
        at_least("overload: admitted of one tenant over the other's", smaller / max(1, larger), 0.9),
        at_most("tasks' states other than running", len(failed), 0),
    ]
