"""Books an ended slice to the tasks that it served, once, in whole milliseconds that add up to the slice."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from scheduler_svc.accelerators.queries import slices, standing
from scheduler_svc.base import metrics
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.tenancy.billing.ledger import Entry


def slice_shares(slice_ms: int, served: Mapping[str, int], ordered_for: Collection[str]) -> dict[str, int]:
    """Milliseconds of a slice booked to each task, including the time of the switch to the slice.

    `served`: amount of service by task, in one unit for all (tokens or milliseconds). `ordered_for`: tasks whose ready work caused the
    slice; they pay in equal parts if nothing was served. Shares are rounded by the largest remainder, so the sum is exact; ids break ties.
    Raises: ValueError for negative numbers, and if there is no task to book to.
    """
    if slice_ms < 0 or any(amount < 0 for amount in served.values()):
        raise ValueError(f"a slice of {slice_ms} ms and served amounts {dict(served)} must not be negative")
    parts = {task: amount for task, amount in served.items() if amount > 0} or dict.fromkeys(ordered_for, 1)
    if not parts:
        raise ValueError(f"a slice of {slice_ms} ms served no task and was ordered for none")
    whole = sum(parts.values())
    shares = {task: slice_ms * part // whole for task, part in sorted(parts.items())}
    missing = slice_ms - sum(shares.values())
    by_remainder = sorted(parts, key=lambda task: (-(slice_ms * parts[task] % whole), task))
    for task in by_remainder[:missing]:
        shares[task] += 1
    return shares


NO_TASK = ""
"""Payer in place of a task, for requests to the base model and for slices that were ordered for no task."""


@dataclass(frozen=True)
class Use:
    """Work of an executor since it woke."""

    served: Mapping[str, int] = field(default_factory=dict[str, int])
    """Amount of service by task, in one unit for all tasks (tokens or milliseconds)."""
    busy_ms: int = 0
    score_ms: int = 0
    """Part of `busy_ms` spent in the function `score`."""


async def book_ended(tx: Transaction, accelerator: str, executor: str, pool: str, *, until: int, use: Use) -> None:
    """Book the executor's ended slices up to the epoch `until`. The accelerator must be locked.

    Several slices are unbooked if the executor was woken before it had parked. All are then split among tasks in the same proportions, and
    busy time fills the newest slice first. The parts of tasks of other pools are booked to NO_TASK.
    """
    ended = await slices.unbooked(tx.connection, accelerator, executor, until)
    if not ended:
        return
    payers = await standing.lock_payers(tx.connection, pool, {*use.served, *(task for one in ended for task in one.tasks)})
    tenants, served = payers.tenants, Counter[str]()
    for task, amount in use.served.items():
        served[task if task in tenants else NO_TASK] += amount
    left_ms, left_score_ms, entries = use.busy_ms, min(use.score_ms, use.busy_ms), list[Entry]()
    for one in ended:
        busy_ms = min(left_ms, one.held_ms - one.switch_ms)
        score_ms = left_score_ms * busy_ms // max(1, left_ms)
        left_ms, left_score_ms = left_ms - busy_ms, left_score_ms - score_ms
        if not await slices.book(tx.connection, accelerator, one, busy_ms, score_ms):
            continue
        for use_of, ms in (("switch", one.switch_ms), ("busy", busy_ms), ("idle", one.held_ms - one.switch_ms - busy_ms)):
            metrics.ACCELERATOR_S.labels(accelerator, pool, use_of).inc(ms / 1000)
        shares = slice_shares(one.held_ms, served, [task for task in one.tasks if task in tenants] or [NO_TASK])
        await slices.share(tx.connection, accelerator, one.epoch, shares, tenants)
        paid = {task: ms for task, ms in shares.items() if ms and task in payers.present}
        entries += [Entry(tenants[task], task, "accelerator", one.number, ms) for task, ms in paid.items()]
    await ledger.record_usage(tx.connection, entries)
