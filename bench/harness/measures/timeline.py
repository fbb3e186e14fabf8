"""Utilization and latencies from the traces of sampler and trainer. Pure.

A task is in the first of these places that applies: training, waiting for the trainer, sampling, waiting for the sampler, in its
environment, held (by the scheduling policy, or between services). Idle time of a stage is attributed in proportion to the places
of the unfinished tasks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from bench.harness.load.standins import SampledSpan, Trace, TrainedSpan

Place = Literal["training", "waiting for the trainer", "sampling", "waiting for the sampler", "environment", "held"]
PLACES: tuple[Place, ...] = ("training", "waiting for the trainer", "sampling", "waiting for the sampler", "environment", "held")


@dataclass(frozen=True)
class Stay:
    """Interval that a step or sequence spends in one place."""

    task: str
    place: Place
    begins: float
    ends: float


@dataclass(frozen=True)
class Use:
    """Use of a stage's time, as shares of the whole run."""

    busy: float
    """Busy share; for the sampler, the mean share of occupied places."""
    in_use: float
    """Share of the time in which it is not empty."""
    idle_by_cause: dict[str, float]
    """Adds up to 1 − busy."""


def stays(trace: Trace) -> list[Stay]:
    """All intervals of a trace, without empty ones."""
    found = [Stay(span.task, place, begins, ends) for span in trace.sampled for place, begins, ends in _sampled(span)] + [
        Stay(span.task, place, begins, ends) for span in trace.trained for place, begins, ends in _trained(span)
    ]
    return [stay for stay in found if stay.ends > stay.begins]


def _sampled(span: SampledSpan) -> Iterator[tuple[Place, float, float]]:
    yield "waiting for the sampler", span.asked_at, span.started_at
    yield "sampling", span.started_at, span.ended_at
    yield "environment", span.ended_at, span.ended_at + span.environment_s


def _trained(span: TrainedSpan) -> Iterator[tuple[Place, float, float]]:
    yield "waiting for the trainer", span.asked_at, span.started_at
    yield "training", span.started_at, span.ended_at


def uses(trace: Trace, begins: float, ends_by_task: dict[str, float], places: int) -> tuple[Use, Use]:
    """Use of sampler and of trainer, from `begins` to the last task's end."""
    changes: list[tuple[float, int, str, str]] = []
    for stay in stays(trace):
        changes += [(stay.begins, 1, stay.task, stay.place), (stay.ends, -1, stay.task, stay.place)]
    changes += [(ends, 0, task, "end") for task, ends in ends_by_task.items()]
    inside: dict[str, Counter[str]] = {task: Counter() for task in ends_by_task}
    where: Counter[str] = Counter({"held": len(inside)})
    at: dict[str, str] = dict.fromkeys(inside, "held")
    sequences = steps = 0
    sampler, trainer = _Tally(), _Tally()
    now = begins
    for moment, change, task, place in sorted(changes):
        if moment > now:
            sampler.add(moment - now, min(1.0, sequences / places), where)
            trainer.add(moment - now, min(1.0, steps), where)
            now = moment
        if place == "end":
            where[at.pop(task)] -= 1
            continue
        inside[task][place] += change
        sequences += change * (place == "sampling")
        steps += change * (place == "training")
        if task in at:
            where[at[task]] -= 1
            at[task] = next((one for one in PLACES if inside[task][one] > 0), "held")
            where[at[task]] += 1
    whole = max(ends_by_task.values()) - begins
    return sampler.use(whole), trainer.use(whole)


class _Tally:
    def __init__(self) -> None:
        self._busy = self._in_use = 0.0
        self._idle: defaultdict[str, float] = defaultdict(float)

    def add(self, seconds: float, busy: float, where: Counter[str]) -> None:
        self._busy += seconds * busy
        self._in_use += seconds * (busy > 0)
        tasks = sum(where.values())
        for place, count in where.items():
            if tasks and count:
                self._idle[place] += seconds * (1 - busy) * count / tasks

    def use(self, whole: float) -> Use:
        idle = {place: round(self._idle[place] / whole, 4) for place in PLACES}
        return Use(round(self._busy / whole, 4), round(self._in_use / whole, 4), idle)


def lanes(trace: Trace, begins: float) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Task → place → (start, length) in seconds from `begins`, overlapping stays joined: for a chart."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for stay in sorted(stays(trace), key=lambda stay: stay.begins):
        spans = found.setdefault(stay.task, {}).setdefault(stay.place, [])
        start, end = round(stay.begins - begins, 3), round(stay.ends - begins, 3)
        if spans and start <= spans[-1][0] + spans[-1][1]:
            first, length = spans[-1]
            spans[-1] = (first, round(max(first + length, end) - first, 3))
        else:
            spans.append((start, round(end - start, 3)))
    return found


def added_latencies(trace: Trace) -> list[float]:
    """Seconds between the end of a turn and the arrival of the trajectory's next one, beyond those of its environment."""
    begun = {(span.task, span.group, span.member, span.turn): span.asked_at for span in trace.sampled}
    found: list[float] = []
    for span in trace.sampled:
        asked_at = begun.get((span.task, span.group, span.member, span.turn + 1))
        if asked_at is not None:
            found.append(asked_at - span.ended_at - span.environment_s)
    return found


def step_times(trained: Sequence[tuple[str, int, float, float]]) -> list[float]:
    """Seconds between steps of each task, for the first since its admission. Input: (task, version, admitted, trained)."""
    by_task: defaultdict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for task, version, admitted, done in trained:
        by_task[task].append((version, admitted, done))
    found: list[float] = []
    for steps in by_task.values():
        steps.sort()
        ends = [steps[0][1], *(done for _, _, done in steps)]
        found += [later - earlier for earlier, later in pairwise(ends)]
    return found
