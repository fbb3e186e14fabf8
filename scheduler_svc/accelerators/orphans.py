"""Executors that are awake without a slice: PostgreSQL was restored, or an order to park was lost.

They keep the accelerator's lock until they are ordered to park, and the holder waits for it. They are told from a predecessor that has not
read its order yet by how long the holder waits.
"""

from collections.abc import Mapping

import structlog

from common.accelerators import ExecutorState, Tier, off_device
from scheduler_svc.accelerators.demands import drain_s
from scheduler_svc.accelerators.deployed import Key
from scheduler_svc.accelerators.orders import ParkOrder
from scheduler_svc.accelerators.queries.standing import AcceleratorState
from scheduler_svc.accelerators.reports import Reports

STRAY_S = 10.0
"""Time for which the holder has waited for the lock before others that are awake are ordered to park."""

log = structlog.get_logger()


class Strays:
    def __init__(self, deepest: Mapping[str, Tier]) -> None:
        """`deepest`: tier that each pool allows."""
        self._deepest = deepest
        self._ordered: dict[Key, int] = {}
        """Epochs that they reported when they were ordered to park: once is enough."""

    def parks(self, standing: AcceleratorState, reports: Reports, now_s: float) -> list[ParkOrder]:
        """Orders to park for executors that keep the holder of the open slice from waking."""
        holder = standing.holder
        if holder is None or holder.newest is None or now_s < holder.newest.ordered_ms / 1000 + STRAY_S:
            return []
        waiting = reports.newest((holder.accelerator, holder.executor), now_s)
        if waiting is None or waiting.state is not ExecutorState.WAKING:
            return []
        found: list[ParkOrder] = []
        for row in standing.executors:
            key = (row.accelerator, row.executor)
            report = reports.newest(key, now_s)
            if row is holder or report is None or report.state is not ExecutorState.AWAKE or self._ordered.get(key) == report.epoch:
                continue
            log.error("awake_without_slice", executor=row.executor, epoch=report.epoch)
            self._ordered[key] = report.epoch
            found.append(ParkOrder(row.executor, off_device(self._deepest[row.pool]), drain_s(0.0, row.function)))
        return found
