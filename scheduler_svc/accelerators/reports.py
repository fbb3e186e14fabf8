"""The newest report of each executor, and which executors are silent."""

from dataclasses import dataclass

import structlog

from common.accelerators import ExecutorState
from common.bus import Delivery
from common.errors import Reject
from common.messages import ExecutorReport
from scheduler_svc.accelerators.deployed import Deployed, Key
from scheduler_svc.accelerators.queries.standing import AcceleratorState

SILENT_S = 3.0
"""Seconds without a report after which an executor counts as gone; executors report every second."""
MAX_AHEAD_S = 5.0
"""Maximum seconds by which a report's time may be ahead of NATS's."""
AT_REST = (ExecutorState.COLD, ExecutorState.PARKED, ExecutorState.FAULTY)
"""States in which an executor neither computes nor moves."""

log = structlog.get_logger()


@dataclass(frozen=True)
class _Seen:
    report: ExecutorReport
    arrived_s: float
    state_since_s: float
    """Arrival time of the first report with the present state."""


class Reports:
    """Newest report by executor. `now_s` is NATS's time everywhere."""

    def __init__(self, deployed: Deployed, now_s: float) -> None:
        self._deployed = deployed
        self._seen: dict[Key, _Seen] = {}
        self._excused_s = now_s

    def take(self, delivery: Delivery, now_s: float) -> bool:
        """Store the report; False if its executor is not deployed, or a newer report is stored."""
        try:
            report = delivery.read(ExecutorReport)
            self._check(report, now_s)
        except Reject as error:
            log.warning("report_refused", subject=delivery.subject, reason=str(error))
            return False
        key = (report.accelerator, report.executor)
        known = self._seen.get(key)
        if known is not None and known.report.replica == report.replica and report.at_s < known.report.at_s:
            return False
        state_since_s = known.state_since_s if known is not None and known.report.state is report.state else now_s
        self._seen[key] = _Seen(report, now_s, state_since_s)
        return True

    def excuse(self, now_s: float) -> None:
        """Ignore silence before `now_s`, when no report could arrive at this process."""
        self._excused_s = now_s

    def newest(self, key: Key, now_s: float) -> ExecutorReport | None:
        """Newest report of the executor; None if there is none, or the executor is gone."""
        seen = self._seen.get(key)
        return seen.report if seen is not None and not self.is_gone(key, now_s) else None

    def is_gone(self, key: Key, now_s: float) -> bool:
        seen = self._seen.get(key)
        return now_s - max(seen.arrived_s if seen is not None else 0.0, self._excused_s) > SILENT_S

    def state_since_s(self, key: Key) -> float:
        """Time since which the executor's reports show its present state; at the earliest, the end of the last gap in reports."""
        seen = self._seen.get(key)
        return max(seen.state_since_s if seen is not None else 0.0, self._excused_s)

    def ready_since_ms(self, now_s: float) -> dict[Key, int | None]:
        """Unix milliseconds since when work waits for each reporting executor to wake; None without work, and while it is awake."""
        found: dict[Key, int | None] = {}
        for key in self._seen:
            if (report := self.newest(key, now_s)) is not None:
                waits = report.state is not ExecutorState.AWAKE and has_work(report)
                since_s = report.at_s if report.ready_since_s is None else min(report.ready_since_s, now_s)
                found[key] = round(1000 * since_s) if waits else None
        return found

    def contradict(self, standing: AcceleratorState, now_s: float) -> bool:
        """Whether a report shows that an executor woke or ended its slice, which the executor's row does not show yet."""
        for row in standing.executors:
            report, newest = self.newest((row.accelerator, row.executor), now_s), row.newest
            if report is None or newest is None or newest.ended_ms is not None:
                continue
            if (has_woken(report, newest.epoch) and newest.awake_ms is None) or has_ended(report, newest.epoch):
                return True
        return False

    def _check(self, report: ExecutorReport, now_s: float) -> None:
        """Raises: Reject if the report's executor is not deployed, or its time is in the future."""
        place = self._deployed.places.get((report.accelerator, report.executor))
        if place is None or place.pool != report.pool:
            raise Reject(f"no executor {report.executor} of pool {report.pool} is on accelerator {report.accelerator}")
        if report.at_s > now_s + MAX_AHEAD_S:
            raise Reject(f"{report.executor} reports {report.at_s - now_s:.0f} s after now; its clock is wrong")


def has_work(report: ExecutorReport) -> bool:
    return report.running is not None or report.ready > 0 or report.begun > 0


def has_woken(report: ExecutorReport, epoch: int) -> bool:
    """Whether the executor is awake for the slice of that epoch; its answer may still be in flight."""
    return report.state is ExecutorState.AWAKE and report.epoch >= epoch


def has_stopped(report: ExecutorReport, awake_s: float) -> bool:
    """Whether the executor, awake at `awake_s`, later reports that it is neither awake nor moving."""
    return report.at_s > awake_s and report.state in AT_REST


def has_ended(report: ExecutorReport, epoch: int) -> bool:
    """Whether the executor has read the order of its slice `epoch`, and is neither awake under it nor moving."""
    return report.epoch >= epoch and report.state in AT_REST
