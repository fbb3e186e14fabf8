"""A thread that ends this process if it does not carry out an order in time, or its event loop hangs.

The thread does not use the event loop, which may hang. A call that hangs while it holds the GIL blocks this thread too. So during a move
a second thread, of Python's faulthandler, ends the process slightly later; it needs no GIL. In a process stopped by SIGSTOP no thread
runs: a guardian process kills it once this thread gives no sign of life, and before its lease has expired.
"""

import faulthandler
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import structlog

from common.heartbeats import STALLED_S
from common.resilience.guardian import guarded
from common.streams import LEASE_TTL_S

CHECK_S = 0.25
BACKSTOP_S = 2.0
"""Seconds after the deadline at which faulthandler's thread, or the guardian, ends the process."""
FENCE_S = LEASE_TTL_S * 2 / 3
"""Seconds without a confirmed renewal of its lease after which a holder must stop computing. A process stopped by SIGSTOP cannot do so, and
is killed."""
STDERR = 2

log = structlog.get_logger()


class Watchdog:
    """Deadlines for this process. Methods may be called from any thread; `watching` by one caller at a time."""

    def __init__(self, *, stalled_s: float = STALLED_S) -> None:
        """`stalled_s`: seconds for which the event loop may be blocked before the process counts as hung."""
        self._stalled_s = stalled_s
        self._deadline: tuple[float, str] | None = None
        self._turned: float | None = None
        """Monotonic time of the event loop's last sign of life; None while the loop is not monitored."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    @contextmanager
    def watching(self, what: str, limit_s: float) -> Generator[None]:
        """End the process if the block takes longer than `limit_s` seconds."""
        self._watch_until(time.monotonic() + limit_s, f"{what} did not end within {limit_s:.0f} s")
        try:
            yield
        finally:
            self._deadline = None
            faulthandler.cancel_dump_traceback_later()

    def postpone(self, seconds: float) -> None:
        """Extend the current deadline by `seconds`."""
        if self._deadline is not None:
            deadline_s, reason = self._deadline
            self._watch_until(deadline_s + seconds, reason)

    def _watch_until(self, deadline_s: float, reason: str) -> None:
        self._deadline = (deadline_s, reason)
        faulthandler.dump_traceback_later(max(0.0, deadline_s - time.monotonic()) + BACKSTOP_S, file=STDERR, exit=True)

    def turned(self) -> None:
        """Record that the event loop runs. From the first call until `released`, each next call is due within `stalled_s` seconds."""
        self._turned = time.monotonic()

    def released(self) -> None:
        """Stop monitoring the event loop."""
        self._turned = None

    def overdue(self) -> str | None:
        """Reason why the process must end now; None if it need not."""
        now, deadline, turned = time.monotonic(), self._deadline, self._turned
        if deadline is not None and now > deadline[0]:
            return deadline[1]
        if turned is not None and now - turned > self._stalled_s:
            return f"the event loop has stood still for {now - turned:.0f} s"
        return None

    def _watch(self) -> None:
        try:
            self._watch_guarded()
        except OSError as error:
            log.error("ended_by_watchdog", reason=f"no guardian can be started beside this process: {error}")
            os._exit(1)

    def _watch_guarded(self) -> None:
        with guarded(self._stalled_s + BACKSTOP_S, stopped_s=FENCE_S) as sign:
            while not self._stopped.wait(CHECK_S):
                sign()
                if (reason := self.overdue()) is not None:
                    log.error("ended_by_watchdog", reason=reason)
                    os._exit(1)  # runs no handlers, and the kernel frees the locks
