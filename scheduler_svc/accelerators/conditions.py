"""The condition of an accelerator, from one snapshot of it. Pure.

`acts.py` has one action for each condition. The *holder* is the executor with the open slice.
An operator's order to wake may name a tier, to measure the moves to it and back: once the executor is awake, its slice ends, it parks in
that tier, and it is woken once more. Until it has parked, no other slice is ordered, so that no other move interferes. The measurement
itself clears the order, so the operator need not wait for it.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from common.accelerators import ExecutorState
from scheduler_svc.accelerators.decisions.state import Idle, Switch
from scheduler_svc.accelerators.reports import AT_REST, has_stopped
from scheduler_svc.accelerators.snapshot import AcceleratorSnapshot, ExecutorSnapshot

IGNORED_S = 30.0
"""Seconds within which an executor must have begun its order, or have reported why not."""
STOPPED_S = 5.0
"""Seconds after which a state that the holder reports counts, even if the answer about it is missing."""


class Condition(StrEnum):
    GONE = "gone"
    """An executor is silent, and still has a slice, memory, or unbooked time."""
    HELD = "held"
    """Executors without a slice are on the device, and an operator has ordered them to park."""
    MEASURING = "measuring"
    """An executor is parking in the tier whose moves are measured."""
    DUE = "due"
    """The open slice ends by an operator's order: immediately, or, if its moves are measured, once its executor is awake."""
    OBSTRUCTED = "obstructed"
    """Executors that are awake without a slice keep the holder from waking."""
    WOKEN = "woken"
    """The holder reports that it is awake, but its answer was lost."""
    IGNORED = "ignored"
    """The holder did not begin to wake within IGNORED_S."""
    WAKING = "waking"
    """The holder is waking; its own watchdog limits the time."""
    UNHEARD = "unheard"
    """A new leader has no report of the holder yet, so it could not order the holder to park."""
    STOPPED = "stopped"
    """The holder stopped computing without an answer: the answer was lost, or NATS was emptied and a new process knows no epoch."""
    SWITCHING = "switching"
    """Another executor gets the next slice."""
    UNUSED = "unused"
    """No work is ready, and the holder's pool has no running tasks."""
    STEADY = "steady"
    """The holder continues, or no executor computes."""


def condition_of(seen: AcceleratorSnapshot) -> Condition:
    """The first condition in CONDITIONS that holds."""
    return next(condition for condition, holds in CONDITIONS.items() if holds(seen))


def _is_measuring(seen: AcceleratorSnapshot) -> bool:
    measured = [one for one in seen.executors.values() if one.row.measured is not None]
    return seen.standing.holder is None and any(_parks(one, seen.now_s) for one in measured)


def _parks(one: ExecutorSnapshot, now_s: float) -> bool:
    """Whether the executor's latest slice has ended, and it is parking or still has time to begin parking."""
    newest, state = one.row.newest, one.report.state
    if newest is None or newest.ended_ms is None:
        return False
    return state is ExecutorState.PARKING or (state is ExecutorState.AWAKE and now_s < newest.ended_ms / 1000 + IGNORED_S)


def _is_due(seen: AcceleratorSnapshot) -> bool:
    row = seen.standing.holder
    return row is not None and (row.is_held or (row.measured is not None and not seen.is_waking))


def _is_awake(seen: AcceleratorSnapshot) -> bool:
    """Whether the holder reports that it is awake under its slice's epoch."""
    one, newest = seen.holder, seen.standing.slice
    return one is not None and newest is not None and one.report.state is ExecutorState.AWAKE and one.report.epoch == newest.epoch


def _is_unmoved(seen: AcceleratorSnapshot) -> bool:
    """Whether the holder reports that it is not moving, and is not awake under its slice's epoch."""
    return seen.holder is not None and seen.holder.report.state in (ExecutorState.AWAKE, *AT_REST) and not _is_awake(seen)


def _has_stopped(seen: AcceleratorSnapshot) -> bool:
    one, newest = seen.holder, seen.standing.slice
    return one is not None and newest is not None and newest.awake_ms is not None and has_stopped(one.report, newest.awake_ms / 1000)


CONDITIONS: Mapping[Condition, Callable[[AcceleratorSnapshot], bool]] = MappingProxyType(
    {
        Condition.GONE: lambda seen: seen.gone is not None,
        Condition.HELD: lambda seen: bool(seen.held_on_device),
        Condition.MEASURING: _is_measuring,
        Condition.DUE: _is_due,
        Condition.OBSTRUCTED: lambda seen: bool(seen.strays),
        Condition.WOKEN: lambda seen: seen.is_waking and _is_awake(seen) and seen.now_s >= seen.unchanged_since_s + STOPPED_S,
        Condition.IGNORED: lambda seen: seen.is_waking and _is_unmoved(seen) and seen.now_s >= seen.unchanged_since_s + IGNORED_S,
        Condition.WAKING: lambda seen: seen.is_waking,
        Condition.UNHEARD: lambda seen: seen.standing.holder is not None and seen.holder is None,
        Condition.STOPPED: lambda seen: _has_stopped(seen) and seen.now_s > seen.unchanged_since_s + STOPPED_S,
        Condition.SWITCHING: lambda seen: isinstance(seen.decision, Switch),
        Condition.UNUSED: lambda seen: seen.holder is not None and isinstance(seen.decision, Idle) and not seen.has_tasks,
        Condition.STEADY: lambda _: True,
    }
)
"""Predicates in order of evaluation: each condition also implies that none above it holds."""
