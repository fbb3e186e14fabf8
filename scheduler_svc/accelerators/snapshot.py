"""One accelerator at one moment: rows, reports, and the decisions' inputs derived from them. Pure.

Executors that an operator holds are ordered off the device, and so are *strays*: executors that are awake without a slice, because
PostgreSQL was restored or an order to park was lost. A stray keeps the accelerator's lock until it is ordered to park, and the holder waits
for it. Until the holder has waited for STRAY_S, an awake executor is no stray: it may be a predecessor that has not read its order to park.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from common.accelerators import ExecutorState, Function, Tier
from common.messages import ExecutorReport
from common.pools import Accelerator
from common.pools.memory import GIB
from scheduler_svc.accelerators.decisions.slicing import Decision, next_slice, park_mode
from scheduler_svc.accelerators.decisions.state import (
    Claim,
    Demand,
    Drain,
    FreezeCosts,
    Holding,
    MemoryBudget,
    Park,
    Quantiles,
    Rules,
    Switch,
)
from scheduler_svc.accelerators.decisions.tiers import Moves, piece_s
from scheduler_svc.accelerators.orders import ParkOrder
from scheduler_svc.accelerators.queries.standing import AcceleratorState, ExecutorRow, NewestSlice
from scheduler_svc.base.states import Hold

REPEATED = 0.2
"""Fraction of a frozen operation's work that is repeated if its KV cache was dropped: one prefill recomputes its prompt and tokens."""
STARTS_WITHIN_S = 10.0
"""Seconds after which a holder that reports waiting work, and has started none, is treated as if it had started."""
STRAY_S = 10.0
"""Seconds for which the holder must wait for the lock before other awake executors are ordered to park."""
BEFORE_ALL_S = float("-inf")


@dataclass(frozen=True)
class ExecutorSnapshot:
    """A reporting executor."""

    row: ExecutorRow
    report: ExecutorReport
    deepest: Tier
    claims: tuple[Claim, ...] = ()
    state_since_s: float = 0.0
    """Time since which its reports show its present state."""
    ordered_epoch: int | None = None
    """Epoch that it reported when it was ordered to park without a slice; None if no such order is pending."""
    is_kept_awake: bool = False
    """Whether it gets a slice without work."""

    @property
    def function(self) -> Function:
        return self.report.running or self.row.function

    @property
    def piece_s(self) -> float:
        """Expected seconds of one operation."""
        return piece_s(self.report.piece_s, self.row.function)

    @property
    def left_s(self) -> float:
        """Expected seconds until the operations in progress end."""
        return self.report.left_s if self.report.left_s is not None else self.piece_s


def rules_of(accelerator: Accelerator, executors: Sequence[ExecutorSnapshot]) -> Rules:
    """Rules of the accelerator. Without `memory_gib` its device memory is the maximum that its executors report."""
    reported = max((one.report.budget_bytes for one in executors), default=0)
    device = reported if accelerator.memory_gib is None else int(accelerator.memory_gib * GIB)
    return Rules(
        MemoryBudget(device, int(accelerator.host_gib * GIB)),
        policy=accelerator.policy,
        max_wait_s=accelerator.max_wait_s,
        residency=accelerator.residency,
    )


def may_work(row: ExecutorRow, now_s: float) -> bool:
    """Whether the executor may get a slice: no operator holds it back, and it is not paused after a failure."""
    return not row.is_held and (row.retry_ms is None or row.retry_ms <= 1000 * now_s)


def demand(one: ExecutorSnapshot, now_s: float, *, is_holder: bool) -> Demand:
    report, row = one.report, one.row
    waits = report.ready > 0 or (report.begun > 0 and not is_holder)
    ready_since_s = (report.at_s if report.ready_since_s is None else min(report.ready_since_s, now_s)) if waits else None
    parked_since_s = BEFORE_ALL_S if row.newest is None or row.newest.ended_ms is None else row.newest.ended_ms / 1000
    is_ordered = not is_holder and row.held is Hold.WAKE and may_work(row, now_s)
    if not is_holder and not may_work(row, now_s):
        ready_since_s = None
    elif (is_ordered or (one.is_kept_awake and not is_holder)) and ready_since_s is None:
        ready_since_s = now_s
    return Demand(
        row.executor,
        row.pool,
        one.function,
        Tier.DEVICE if is_holder else report.tier,
        report.device_bytes,
        report.host_bytes,
        one.deepest,
        ready_since_s,
        parked_since_s,
        one.piece_s * (report.ready + report.begun),
        one.claims if ready_since_s is not None or is_holder else (),
        is_ordered,
    )


def holding(one: ExecutorSnapshot, newest: NewestSlice, standing: AcceleratorState, now_s: float) -> Holding:
    """The slice in progress, whose executor `one` is awake."""
    assert newest.awake_ms is not None
    report, awake_s = one.report, newest.awake_ms / 1000
    is_current = report.epoch >= newest.epoch and report.state is ExecutorState.AWAKE  # else the report is from before it woke
    running = one.function if is_current and (report.running is not None or report.begun > 0) else None
    moved_s = newest.ordered_ms if standing.moved_ms is None else standing.moved_ms
    return Holding(
        one.row.executor,
        awake_s,
        (newest.awake_ms - newest.ordered_ms) / 1000,
        running,
        (is_current and (running is not None or report.pieces > 0)) or now_s > awake_s + STARTS_WITHIN_S,
        moved_s / 1000,
        standing.moved_in_ms / 1000,
        Quantiles(one.left_s, one.left_s) if running is not None else None,
    )


@dataclass(frozen=True)
class AcceleratorSnapshot:
    """State of an accelerator at one moment."""

    now_s: float
    standing: AcceleratorState
    executors: Mapping[str, ExecutorSnapshot]
    silent: Collection[str]
    """Executors that count as gone."""
    moves: Moves
    rules: Rules
    has_tasks: bool
    """Whether the holder's pool has running tasks, or the holder is kept awake without any."""

    @property
    def holder(self) -> ExecutorSnapshot | None:
        """The executor with the open slice; None if no slice is open, or the executor has not reported yet."""
        return None if self.standing.holder is None else self.executors.get(self.standing.holder.executor)

    @property
    def is_waking(self) -> bool:
        """Whether the open slice's executor has not woken yet."""
        return self.standing.slice is not None and self.standing.slice.awake_ms is None

    @property
    def unchanged_since_s(self) -> float:
        """Time since which the holder has reported its present state; at the earliest, when its slice was ordered or when it woke."""
        newest, since_s = self.standing.slice, self.now_s if self.holder is None else self.holder.state_since_s
        return since_s if newest is None else max(since_s, (newest.awake_ms or newest.ordered_ms) / 1000)

    @property
    def gone(self) -> ExecutorRow | None:
        """A silent executor that still has a slice, memory, or unbooked time; None if every silent executor is recorded as gone."""
        holder, rows = self.standing.holder, (row for row in self.standing.executors if row.executor in self.silent)
        return next((row for row in rows if row is holder or row.tier is not Tier.OFF or row.has_unbooked), None)

    @property
    def held_on_device(self) -> list[ParkOrder]:
        """Orders to park executors that an operator holds and that are still on the device; each is issued once."""
        return [
            ParkOrder(name, one.deepest)
            for name, one in self.executors.items()
            if one.row.is_held
            and one.row is not self.standing.holder
            and one.report.tier is Tier.DEVICE is not one.deepest
            and one.ordered_epoch is None
        ]

    @property
    def strays(self) -> list[ExecutorSnapshot]:
        """Awake executors that keep the holder from waking, and were not ordered to park yet."""
        holder, newest = self.holder, self.standing.slice
        waits = self.is_waking and holder is not None and holder.report.state is ExecutorState.WAKING
        if not waits or newest is None or self.now_s < newest.ordered_ms / 1000 + STRAY_S:
            return []
        others = (one for one in self.executors.values() if one is not holder and one.report.state is ExecutorState.AWAKE)
        return [one for one in others if one.ordered_epoch != one.report.epoch]

    @cached_property
    def decision(self) -> Decision:
        """Decision of the accelerator's policy."""
        return next_slice(self.now_s, self.held, self.demands, self.moves, self.rules)

    @cached_property
    def demands(self) -> list[Demand]:
        holder = self.standing.holder
        return [demand(one, self.now_s, is_holder=one.row is holder) for one in self.executors.values()]

    @cached_property
    def held(self) -> Holding | None:
        """The slice in progress; None without one, and while its executor wakes."""
        one = self.holder
        if one is None or one.row.newest is None or one.row.newest.awake_ms is None:
            return None
        return holding(one, one.row.newest, self.standing, self.now_s)

    def parks(self, switch: Switch) -> list[ParkOrder]:
        """Orders to park for a switch: the holder, by `park_mode`, and others that leave the device."""
        to = {park.executor: park.to_tier for park in switch.park_to}
        if self.executors[switch.executor].row.needs_room:
            to |= {park.executor: park.to_tier for park in deeper(switch.executor, self.demands)}
        held = self.held
        found = [ParkOrder(name, tier) for name, tier in sorted(to.items()) if held is None or name != held.executor]
        return found if held is None else [self._park_holder(switch, held, to.get(held.executor, Tier.DEVICE)), *found]

    def _park_holder(self, switch: Switch, held: Holding, tier: Tier) -> ParkOrder:
        one, next_ = self.executors[held.executor], next(each for each in self.demands if each.executor == switch.executor)
        back_s = self.moves.seconds(held.executor, tier, Tier.DEVICE, one.report.device_bytes)
        again_s = REPEATED * one.report.begun * one.piece_s if tier is not Tier.DEVICE else 0.0
        slack_s = next_.waiting_since_s + self.rules.max_wait_s - self.now_s
        costs = FreezeCosts(max(held.switch_s, back_s), again_s)
        mode = park_mode(held.left, self.now_s - held.awake_s, slack_s, costs, self.rules)
        return ParkOrder(held.executor, tier, drain_s(mode.seconds if isinstance(mode, Drain) else 0.0, one.function))


def drain_s(seconds: float, function: Function) -> float | None:
    """Seconds that running work may take to finish; None: no limit, as for training steps and scoring passes, which cannot be frozen."""
    return max(0.0, seconds) if function.is_interruptible and seconds < float("inf") else None


def deeper(executor: str, demands: Sequence[Demand]) -> list[Park]:
    """Moves of all other executors one tier deeper, as far as their pools allow, to free the memory that `executor` lacked."""
    steps = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DISK}
    return [
        Park(one.executor, one.tier, steps[one.tier])
        for one in demands
        if one.executor != executor and one.tier in steps and steps[one.tier].depth <= one.deepest.depth
    ]
