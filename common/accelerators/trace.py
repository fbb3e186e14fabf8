"""Traces: executors, durations of their moves, and steps of tasks, as JSON lines.

One object a line, of one of three kinds, in any order:

    {"kind": "executor", "executor": "rollout-a", "pool": "a", "functions": ["generate"], "device_bytes": 60, "host_bytes": 60,
     "deepest": "disk", "places": 8, "gain": [1, 1.8, 2.5], "refill": 0.1}
    {"kind": "move", "executor": "rollout-a", "from": "host", "to": "device", "seconds": 0.36}
    {"kind": "step", "task": "letters", "tenant": "acme", "weight": 1, "pool": "a", "at_s": 0, "version": 0,
     "phases": [["generate", 2.1], ["environment", 15.3], ["train", 0.9]]}

executor   `device_bytes` and `host_bytes`: awake, and parked in host memory. `places`: concurrent operations. `gain`: throughput
           with 1, 2, … concurrent operations, as a multiple of a single one's; the last value also holds for any higher number.
           `refill`: share of a frozen operation's work that is repeated when the operation continues.
move       one measured move between tiers (`device`, `host`, `disk`, `none`, `off`). A simulated move takes one of the measured times.
step       `phases`: phases of the step, in order. Each is a function of its pool and the seconds that it took alone on the accelerator,
           or `environment` and the seconds in which the task needed no accelerator. `at_s`: when the task was submitted. `version`
           orders the task's steps, each of which starts when the previous one is done. `weight`: of the tenant. `members`, if given:
           the phases of each trajectory of the step. Trajectories run concurrently; `phases` follow when all have ended.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.accelerators import Function, Tier

ENVIRONMENT = "environment"

Phase = tuple[str, float]
"""Function or `ENVIRONMENT`, and its duration in seconds."""


@dataclass(frozen=True)
class Executor:
    """Properties of one executor."""

    executor: str
    pool: str
    functions: tuple[Function, ...]
    device_bytes: int
    host_bytes: int
    deepest: Tier = Tier.DISK
    places: int = 1
    gain: tuple[float, ...] = (1.0,)
    refill: float = 0.1
    moves: dict[tuple[Tier, Tier], tuple[float, ...]] = field(default_factory=dict[tuple[Tier, Tier], tuple[float, ...]])

    def gain_of(self, operations: int) -> float:
        return self.gain[min(operations, len(self.gain)) - 1] if operations else 0.0


@dataclass(frozen=True)
class Task:
    """A task and all its steps, each a list of phases."""

    task: str
    tenant: str
    pool: str
    at_s: float
    steps: tuple[tuple[Phase, ...], ...]
    weight: float = 1.0
    members: tuple[tuple[tuple[Phase, ...], ...], ...] = ()
    """Phases of each trajectory, by step; empty if steps have no trajectories."""

    def members_of(self, step: int) -> tuple[tuple[Phase, ...], ...]:
        return self.members[step] if self.members else ()

    @property
    def busy_s(self) -> float:
        """Accelerator seconds of all its steps, if operations run one at a time."""
        together = sum(_seconds(phases, in_environment=False) for members in self.members for phases in members)
        return together + sum(_seconds(phases, in_environment=False) for phases in self.steps)

    @property
    def away_s(self) -> float:
        """Seconds in which the task needs no accelerator. Trajectories of a step run concurrently, so only the longest counts."""
        together = sum(max((_seconds(phases, in_environment=True) for phases in members), default=0.0) for members in self.members)
        return together + sum(_seconds(phases, in_environment=True) for phases in self.steps)


def _seconds(phases: Sequence[Phase], *, in_environment: bool) -> float:
    return sum(seconds for what, seconds in phases if (what == ENVIRONMENT) is in_environment)


@dataclass(frozen=True)
class Trace:
    executors: tuple[Executor, ...]
    tasks: tuple[Task, ...]

    def of_pool(self, pool: str) -> "Trace":
        """The part of the trace that concerns one pool."""
        return Trace(
            tuple(one for one in self.executors if one.pool == pool),
            tuple(one for one in self.tasks if one.pool == pool),
        )

    @property
    def pools(self) -> list[str]:
        return sorted({one.pool for one in self.executors})


def read(path: Path) -> Trace:
    """Read a trace file. Raises: ValueError naming the line that is of none of the three kinds, or lacks a field."""
    return parsed(path.read_text().splitlines(), str(path))


def parsed(lines: Iterable[str], source: str = "trace") -> Trace:
    """Parse a trace's lines; errors name `source`. Raises: as `read`."""
    executors: dict[str, dict[str, object]] = {}
    moves: dict[str, dict[tuple[Tier, Tier], list[float]]] = {}
    steps: dict[str, list[dict[str, object]]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
            kind = one.pop("kind")
            if kind == "executor":
                executors[one["executor"]] = one
            elif kind == "move":
                between = (Tier(one["from"]), Tier(one["to"]))
                moves.setdefault(one["executor"], {}).setdefault(between, []).append(float(one["seconds"]))
            elif kind == "step":
                steps.setdefault(one["task"], []).append(one)
                _phases(one["phases"])
                _members(one)
            else:
                raise ValueError(f"kind '{kind}' is none of executor, move, step")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{source}, line {number}: {error!r}") from error
    tables = [_executor(one, moves.get(name, {})) for name, one in sorted(executors.items())]
    return Trace(tuple(tables), tuple(_task(found) for _, found in sorted(steps.items())))


def write(path: Path, trace: Trace) -> None:
    path.write_text(text_of(trace))


def text_of(trace: Trace) -> str:
    """Content of the trace's file: JSON lines."""
    lines: list[Mapping[str, object]] = []
    for one in trace.executors:
        lines.append(
            {"kind": "executor", "executor": one.executor, "pool": one.pool, "functions": list(one.functions)}
            | {"device_bytes": one.device_bytes, "host_bytes": one.host_bytes, "deepest": one.deepest}
            | {"places": one.places, "gain": list(one.gain), "refill": one.refill}
        )
        for (from_tier, to_tier), durations in one.moves.items():
            lines += [{"kind": "move", "executor": one.executor, "from": from_tier, "to": to_tier, "seconds": each} for each in durations]
    for task in trace.tasks:
        for version, phases in enumerate(task.steps):
            named = {"kind": "step", "task": task.task, "tenant": task.tenant, "weight": task.weight, "pool": task.pool}
            line: dict[str, object] = {**named, "at_s": task.at_s, "version": version, "phases": [list(phase) for phase in phases]}
            members = task.members_of(version)
            lines.append(line | {"members": [[list(phase) for phase in member] for member in members]} if members else line)
    return "".join(json.dumps(line) + "\n" for line in lines)


def _executor(one: dict[str, object], moves: dict[tuple[Tier, Tier], list[float]]) -> Executor:
    known = {name: one[name] for name in ("executor", "pool", "device_bytes", "host_bytes", "places", "refill") if name in one}
    known["functions"] = tuple(Function(each) for each in _list(one["functions"]))
    if "deepest" in one:
        known["deepest"] = Tier(str(one["deepest"]))
    if "gain" in one:
        known["gain"] = tuple(float(str(each)) for each in _list(one["gain"]))
    return Executor(**known, moves={between: tuple(each) for between, each in moves.items()})  # type: ignore[arg-type]


def _task(found: Sequence[dict[str, object]]) -> Task:
    ordered = sorted(found, key=lambda one: int(str(one["version"])))
    first = ordered[0]
    task, tenant, pool = (str(first[name]) for name in ("task", "tenant", "pool"))
    weight = float(str(first.get("weight", 1.0)))
    steps, members = tuple(_phases(one["phases"]) for one in ordered), tuple(_members(one) for one in ordered)
    return Task(task, tenant, pool, float(str(first["at_s"])), steps, weight, members if any(members) else ())


def _phases(value: object) -> tuple[Phase, ...]:
    return tuple((_what(str(what)), float(seconds)) for what, seconds in _pairs(value))


def _members(one: dict[str, object]) -> tuple[tuple[Phase, ...], ...]:
    return tuple(_phases(member) for member in _list(one.get("members", [])))


def _what(name: str) -> str:
    return ENVIRONMENT if name == ENVIRONMENT else Function(name)


def _list(value: object) -> Iterable[object]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return value


def _pairs(value: object) -> Iterable[tuple[object, str]]:
    for pair in _list(value):
        what, seconds = _list(pair)
        yield what, str(seconds)
