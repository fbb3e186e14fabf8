"""Executors and their work, as the decisions want them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from common.accelerators import ExecutorState, Function, Tier
from common.messages import ExecutorReport
from common.pools import Accelerator
from common.pools.memory import GIB
from scheduler_svc.accelerators.decisions.moves import Moves, piece_s
from scheduler_svc.accelerators.decisions.slicing import park_mode
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
from scheduler_svc.accelerators.orders import ParkOrder
from scheduler_svc.accelerators.queries.standing import AcceleratorState, ExecutorRow, NewestSlice
from scheduler_svc.base.states import Hold

REPEATED = 0.2
"""Share of a frozen operation's work that is repeated where the KV cache is dropped: its prompt and tokens are computed in one pass."""
STARTS_WITHIN_S = 10.0
"""Time within which a holder that says that work waits for it has begun some; then others count as if it had."""
BEFORE_ALL_S = float("-inf")


@dataclass(frozen=True)
class ExecutorSnapshot:
    """An executor that reports."""

    row: ExecutorRow
    report: ExecutorReport
    deepest: Tier
    claims: tuple[Claim, ...] = ()

    @property
    def function(self) -> Function:
        return self.report.running or self.row.function

    @property
    def piece_s(self) -> float:
        """Expected seconds of one operation."""
        return piece_s(self.report.piece_s, self.row.function)

    @property
    def left_s(self) -> float:
        """Expected seconds until what has begun has ended."""
        return self.report.left_s if self.report.left_s is not None else self.piece_s


def rules_of(accelerator: Accelerator, executors: Sequence[ExecutorSnapshot]) -> Rules:
    """How much memory a GPU without `memory_gib` has is known to its executors."""
    reported = max((one.report.budget_bytes for one in executors), default=0)
    device = reported if accelerator.memory_gib is None else int(accelerator.memory_gib * GIB)
    return Rules(
        MemoryBudget(device, int(accelerator.host_gib * GIB)),
        policy=accelerator.policy,
        max_wait_s=accelerator.max_wait_s,
        residency=accelerator.residency,
    )


def may_work(row: ExecutorRow, now_s: float) -> bool:
    """Whether it may be given a slice: no operator holds it back, and it is not paused after a failure."""
    return row.held not in (Hold.PARK, Hold.DRAIN) and (row.retry_ms is None or row.retry_ms <= 1000 * now_s)


def demand(one: ExecutorSnapshot, now_s: float, *, is_holder: bool) -> Demand:
    report, row = one.report, one.row
    waits = report.ready > 0 or (report.begun > 0 and not is_holder)
    ready_since_s = (report.at_s if report.ready_since_s is None else min(report.ready_since_s, now_s)) if waits else None
    parked_since_s = BEFORE_ALL_S if row.newest is None or row.newest.ended_ms is None else row.newest.ended_ms / 1000
    is_ordered = not is_holder and row.held is Hold.WAKE and may_work(row, now_s)
    if not is_holder and not may_work(row, now_s):
        ready_since_s = None
    elif is_ordered and ready_since_s is None:
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
    """`one` has the open slice, and is awake."""
    assert newest.awake_ms is not None
    report, awake_s = one.report, newest.awake_ms / 1000
    is_current = report.epoch >= newest.epoch and report.state is ExecutorState.AWAKE  # else from before it woke
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
    """An accelerator at one moment: rows, reports and what follows from them."""

    now_s: float
    standing: AcceleratorState
    executors: Mapping[str, ExecutorSnapshot]
    moves: Moves
    rules: Rules

    @cached_property
    def demands(self) -> list[Demand]:
        holder = self.standing.holder
        return [demand(one, self.now_s, is_holder=one.row is holder) for one in self.executors.values()]

    @cached_property
    def held(self) -> Holding | None:
        """The slice in progress; None without one, and while its executor wakes."""
        row = self.standing.holder
        one = self.executors.get(row.executor) if row is not None else None
        if one is None or one.row.newest is None or one.row.newest.awake_ms is None:
            return None
        return holding(one, one.row.newest, self.standing, self.now_s)

    def parks(self, switch: Switch) -> list[ParkOrder]:
        """Orders to park for a switch: the holder, as `park_mode` says, and others that leave the device."""
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
    """None: until all has ended, which a step or a scoring pass always does."""
    return max(0.0, seconds) if function.is_interruptible and seconds < float("inf") else None


def deeper(executor: str, demands: Sequence[Demand]) -> list[Park]:
    """Moves of all others one tier deeper, as far as their pools allow it, so that `executor` has the room that it lacked."""
    steps = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DISK}
    return [
        Park(one.executor, one.tier, steps[one.tier])
        for one in demands
        if one.executor != executor and one.tier in steps and steps[one.tier].depth <= one.deepest.depth
    ]
