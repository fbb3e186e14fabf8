"""Books a slice that has ended to the tasks that it served, once, in whole milliseconds whose sum is the slice."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from scheduler_svc.accelerators.decisions.slice_shares import slice_shares
from scheduler_svc.accelerators.queries import slices, work
from scheduler_svc.base import metrics
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.tenancy.billing import ledger
from scheduler_svc.tenancy.billing.ledger import Entry

NOBODY = ""
"""In place of a task: requests to the base model, and slices that were ordered for no task."""


@dataclass(frozen=True)
class Use:
    """What an executor did since it woke."""

    served: Mapping[str, int] = field(default_factory=dict[str, int])
    """By task, in one unit."""
    busy_ms: int = 0
    score_ms: int = 0
    """Of `busy_ms`, those of the function `score`."""


async def book_ended(tx: Transaction, accelerator: str, executor: str, pool: str, *, until: int, use: Use) -> None:
    """Book the executor's ended slices up to the epoch `until`. The accelerator is locked.

    There is more than one where it was woken before it had parked; then all have the same proportions, and the newest is busy first.
    Tasks that are not the pool's count as nobody.
    """
    ended = await slices.unbooked(tx.connection, accelerator, executor, until)
    if not ended:
        return
    payers = await work.lock_payers(tx.connection, pool, {*use.served, *(task for one in ended for task in one.tasks)})
    tenants, served = payers.tenants, Counter[str]()
    for task, amount in use.served.items():
        served[task if task in tenants else NOBODY] += amount
    left_ms, left_score_ms, entries = use.busy_ms, min(use.score_ms, use.busy_ms), list[Entry]()
    for one in ended:
        busy_ms = min(left_ms, one.held_ms - one.switch_ms)
        score_ms = left_score_ms * busy_ms // max(1, left_ms)
        left_ms, left_score_ms = left_ms - busy_ms, left_score_ms - score_ms
        if not await slices.book(tx.connection, accelerator, one, busy_ms, score_ms):
            continue
        for use_of, ms in (("switch", one.switch_ms), ("busy", busy_ms), ("idle", one.held_ms - one.switch_ms - busy_ms)):
            metrics.ACCELERATOR_S.labels(accelerator, pool, use_of).inc(ms / 1000)
        shares = slice_shares(one.held_ms, served, [task for task in one.tasks if task in tenants] or [NOBODY])
        await slices.share(tx.connection, accelerator, one.epoch, shares, tenants)
        paid = {task: ms for task, ms in shares.items() if ms and task in payers.present}
        entries += [Entry(tenants[task], task, "accelerator", one.number, ms) for task, ms in paid.items()]
    await ledger.record_usage(tx.connection, entries)
