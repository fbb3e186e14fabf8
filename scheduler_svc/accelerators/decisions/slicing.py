"""Which executor computes next on a shared accelerator, and how its holder is parked. Pure.

Under every policy an executor that an operator ordered is next. The policy `ratio`, response ratio with switch cost, decides in this order:

1. An executor that has waited for `max_wait_s` is next, the longest wait first. A step or scoring pass of the holder ends before it parks;
   it is ordered to park while one runs, so that its own watchdog ends one that hangs.
2. What was moved to the device stays for its residency, a multiple of the switch that moved it, while it has work: its executors alone
   follow each other.
3. Of the executors that are not ahead of their share of the accelerator's time, the highest (wait + work) / (work + switch) is next; a
   holder with work keeps unless the ratio exceeds its own by the hysteresis. A holder without work is not waited for.

The wait of an executor begins when its oldest work is ready and its latest slice is over. Without the second an executor with a growing
backlog would be overdue for ever, and nothing would bound the others' waiting. With it, and since a slice that others wait for past
`max_wait_s` ends with its operation, no executor with ready work waits longer than `max_wait_s` and, for each executor, one operation and
one switch. `fcfs` knows no such bound; only a slice of its that has lasted for `max_wait_s` ends with its step in the same way.

PlexRL (arXiv 2605.20863) names its policy HRRS and does not publish its formula. This one is our own and claims nothing about theirs;
highest response ratio next is from Brinch Hansen, 1971.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from common.accelerators import Policy
from scheduler_svc.accelerators.decisions.situation import Candidate, Situation, situation
from scheduler_svc.accelerators.decisions.state import (
    Demand,
    Drain,
    Freeze,
    FreezeCosts,
    Holding,
    Idle,
    Keep,
    Quantiles,
    Reason,
    Rules,
    Switch,
)
from scheduler_svc.accelerators.decisions.tiers import Moves

NEVER_S = float("inf")
SOON_S = 1e-3
"""Minimum time until a decision is looked at again."""

MIN_PROGRESS_S = 1.0
"""Minimum time for which requests run before they are frozen."""

Decision = Keep | Idle | Switch


def next_slice(
    now_s: float,
    holding: Holding | None,
    demands: Sequence[Demand],
    moves: Moves,
    rules: Rules,
    policy: Callable[[Situation], Decision] | None = None,
) -> Decision:
    """What the accelerator does next.

    To be asked whenever work becomes ready or ends, when a switch is done, and at `until_s` of the latest answer. `demands`: every
    executor of the accelerator, with or without ready work, in any order; faulty ones without. After a `Switch` the holder is parked as
    `park_mode` says. `policy`: instead of the one that the rules name, for comparisons. Equal arguments give equal answers.
    """
    seen = situation(now_s, holding, demands, moves, rules)
    if seen.is_interruptible:
        return seen.ordered[0].chosen(Reason.ORDER) if seen.ordered else (policy or POLICIES[rules.policy])(seen)
    if holding is not None and holding.running is None:  # it is beginning
        may_be_frozen = seen.holder is not None and seen.holder.function.is_interruptible
        return Keep(now_s + SOON_S if may_be_frozen else NEVER_S)
    from_s = seen.next_overdue_s
    if rules.policy is not Policy.RATIO and holding is not None:  # their order is their own; but a step that hangs must not hold for ever
        from_s = max(from_s, holding.awake_s + rules.max_wait_s)
    if from_s <= now_s:
        return seen.overdue[0].chosen(Reason.OVERDUE)
    return Keep(max(now_s + SOON_S, from_s))


def park_mode(left: Quantiles | None, held_s: float, slack_s: float, costs: FreezeCosts, rules: Rules) -> Drain | Freeze:
    """How the holder ends what runs; requests are never aborted.

    `left`: time until what runs has ended, None when nothing runs. `held_s`: how long it has been awake. `slack_s`: time until the next
    executor is overdue, 0 or less once it is. `fcfs` drains to the end. Requests are frozen where they would hold up an overdue executor
    for longer than `drain` times what freezing costs, but not before they have run for twice the cost: else they might never end.
    """
    if left is None:
        return Drain(0.0)
    if rules.policy is not Policy.RATIO:
        return Drain(NEVER_S)
    allowed_s = max(slack_s, rules.drain * costs.seconds)
    if left.p50_s <= allowed_s:
        return Drain(allowed_s)
    progress_s = max(MIN_PROGRESS_S, 2 * costs.seconds) - held_s
    return Drain(progress_s) if progress_s > 0 else Freeze()


def _by_ratio(seen: Situation) -> Decision:
    if overdue := seen.overdue:
        return overdue[0].chosen(Reason.OVERDUE)
    if seen.stays_until_s > seen.now_s and (seen.is_working or seen.on_device):
        if not seen.is_working and (local := _best(seen.on_device, seen)) is not None:
            return local.chosen(Reason.RESIDENT)
        if seen.is_working:
            return Keep(max(seen.now_s + SOON_S, min(seen.stays_until_s, seen.next_overdue_s)))
    if seen.is_working:
        return _beside_a_working_holder(seen)
    best = _best(seen.candidates, seen)
    if best is None:
        return Idle(NEVER_S)
    return best.chosen(Reason.FIRST if seen.holder is None else Reason.RATIO)


def _beside_a_working_holder(seen: Situation) -> Decision:
    assert seen.holder is not None
    best = _best(seen.candidates, seen)
    if best is None:
        return Keep(seen.next_overdue_s)
    if seen.holder.executor not in seen.fair:
        return best.chosen(Reason.RATIO)
    own = _own_ratio(seen.holder, seen.now_s)
    if best.ratio(seen.now_s) > seen.rules.hysteresis * own:
        return best.chosen(Reason.RATIO)
    exceeds_s = seen.now_s + (seen.rules.hysteresis * own - best.ratio(seen.now_s)) * (best.demand.work_s + best.switch_s)
    return Keep(max(seen.now_s + SOON_S, min(exceeds_s, seen.next_overdue_s)))


def _best(candidates: Sequence[Candidate], seen: Situation) -> Candidate | None:
    """The highest ratio of those that are not ahead of their share."""
    fair = [one for one in candidates if one.executor in seen.fair]
    return min(fair, key=lambda one: (-one.ratio(seen.now_s), one.executor), default=None)


def _own_ratio(holder: Demand, now_s: float) -> float:
    """The holder's ratio: no switch, and the wait of its oldest work that has not begun."""
    wait_s = 0.0 if holder.ready_since_s is None else now_s - holder.ready_since_s
    return (wait_s + holder.work_s) / holder.work_s if holder.work_s > 0 else 1.0


def first_come_first_served(seen: Situation) -> Decision:
    """The operation that has been ready longest is next, wherever it has to run. It drains, and knows neither shares nor switch costs."""
    oldest = min(seen.candidates, key=lambda one: (_ready_since_s(one), one.executor), default=None)
    own = None if seen.holder is None else seen.holder.ready_since_s
    if oldest is not None and (own is None or _ready_since_s(oldest) < own):
        return oldest.chosen(Reason.ORDER)
    return Keep(NEVER_S) if seen.is_working else Idle(NEVER_S)


def _ready_since_s(candidate: Candidate) -> float:
    return NEVER_S if candidate.demand.ready_since_s is None else candidate.demand.ready_since_s


POLICIES: Mapping[Policy, Callable[[Situation], Decision]] = MappingProxyType(
    {
        Policy.RATIO: _by_ratio,
        Policy.FCFS: first_come_first_served,
    }
)
