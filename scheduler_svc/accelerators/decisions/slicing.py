"""Which executor computes next on a shared accelerator, and how its holder is parked. Pure.

Under every policy an executor that an operator ordered is next. The policy `ratio`, response ratio with switch cost, decides in this order:

1. An executor that has waited for `max_wait_s` is next, longest wait first. A step or scoring pass of the holder finishes before it parks;
   the order to park is sent while it runs, so that the executor's own watchdog ends an operation that hangs.
2. State moved to the device stays there for its residency while it has work: meanwhile only executors on the device follow each other. The
   residency is a multiple of the duration of the switch that moved the state.
3. Of the executors that are not ahead of their share of the accelerator's time, the highest (wait + work) / (work + switch) is next. A
   holder with work keeps the accelerator unless the ratio exceeds its own by the hysteresis. A holder without work is switched away from.

An executor's wait begins when its oldest work is ready and its latest slice is over. Without the second condition an executor with a
growing backlog would be permanently overdue, and the others' waiting would be unbounded. With it the wait of an executor with ready work is
bounded by `max_wait_s` plus, for each executor, one operation and one switch: a slice ends with its operation once another executor is
overdue. The policy `fcfs` has no such bound; its slices end with their step only after they have lasted for `max_wait_s`.

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
"""Minimum seconds until a decision is reconsidered."""

MIN_PROGRESS_S = 1.0
"""Minimum seconds for which requests run before they are frozen."""

Decision = Keep | Idle | Switch


def next_slice(
    now_s: float,
    holding: Holding | None,
    demands: Sequence[Demand],
    moves: Moves,
    rules: Rules,
    policy: Callable[[Situation], Decision] | None = None,
) -> Decision:
    """The next decision on the accelerator.

    Call it whenever work becomes ready or ends, when a switch is done, and at `until_s` of the latest decision. `demands`: every
    executor of the accelerator, in any order; pass faulty ones without ready work. After a `Switch` the holder is parked by
    `park_mode`. `policy`: overrides the policy in the rules, for comparisons. Deterministic.
    """
    seen = situation(now_s, holding, demands, moves, rules)
    if seen.is_interruptible:
        return seen.ordered[0].chosen(Reason.ORDER) if seen.ordered else (policy or POLICIES[rules.policy])(seen)
    if holding is not None and holding.running is None:  # the holder is about to begin its first operation
        may_be_frozen = seen.holder is not None and seen.holder.function.is_interruptible
        return Keep(now_s + SOON_S if may_be_frozen else NEVER_S)
    from_s = seen.next_overdue_s
    if rules.policy is not Policy.RATIO and holding is not None:  # a hanging step must not hold it forever
        from_s = max(from_s, holding.awake_s + rules.max_wait_s)
    if from_s <= now_s:
        return seen.overdue[0].chosen(Reason.OVERDUE)
    return Keep(max(now_s + SOON_S, from_s))


def park_mode(left: Quantiles | None, held_s: float, slack_s: float, costs: FreezeCosts, rules: Rules) -> Drain | Freeze:
    """How the holder's running work is ended; requests are never aborted.

    `left`: time until the running work ends, None if nothing runs. `held_s`: seconds since the holder woke. `slack_s`: seconds until the
    next executor is overdue, 0 or less once it is. Under `fcfs` running work finishes. Otherwise requests are frozen if they would delay an
    overdue executor for longer than `drain` times the cost of freezing. They first run for twice that cost, or they might never finish.
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
    """The candidate with the highest ratio among those that are not ahead of their share; None if there is none."""
    fair = [one for one in candidates if one.executor in seen.fair]
    return min(fair, key=lambda one: (-one.ratio(seen.now_s), one.executor), default=None)


def _own_ratio(holder: Demand, now_s: float) -> float:
    """The holder's response ratio: its switch costs nothing, and its wait is that of its oldest work that has not begun."""
    wait_s = 0.0 if holder.ready_since_s is None else now_s - holder.ready_since_s
    return (wait_s + holder.work_s) / holder.work_s if holder.work_s > 0 else 1.0


def first_come_first_served(seen: Situation) -> Decision:
    """The policy `fcfs`: the operation that has been ready longest is next. The holder drains; shares and switch costs are ignored."""
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
