"""Sends reports of ended requests to the scheduler, which bills them; retries until NATS stores them."""

import asyncio
from contextlib import suppress

import structlog
from prometheus_client import Counter

from common import streams
from common.bus import Bus, Outgoing
from common.errors import MarlaasError, Reject
from common.messages import ServeRequest, ServingEnded
from common.resilience.backoff import Backoff
from gateway_svc.serving.progress import Given

MAX_WAITING = 20_000
"""Maximum reports waiting for NATS: about as many requests as one process ends in minutes."""
PAUSE = Backoff(first_s=0.5, max_s=10.0)
UNBOOKED = Counter("marlaas_gateway_unbooked_requests_total", "Ended requests whose report was dropped, so that they are not billed")

log = structlog.get_logger()


def report_of(request: ServeRequest, given: Given) -> ServingEnded | None:
    """Report of an ended request; None if the client received nothing. `request`: message of the last attempt."""
    if given.prompt is None:
        return None
    adapter = request.adapter
    return ServingEnded(
        request=request.request,
        attempt=request.attempt,
        tenant=request.tenant,
        key=request.key,
        pool=request.pool,
        task=adapter.task if adapter else None,
        version=adapter.version if adapter else None,
        prompt_tokens=given.prompt,
        cached_tokens=min(given.cached, given.prompt),  # a resumed attempt also finds sampled tokens in the cache
        sampled_tokens=given.sampled,
    )


class Reports:
    """Queue of reports. `run` must be running."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._waiting = asyncio.Queue[ServingEnded](MAX_WAITING)

    def send(self, report: ServingEnded) -> None:
        try:
            self._waiting.put_nowait(report)
        except asyncio.QueueFull:
            UNBOOKED.inc()
            log.error("request_not_booked", request=report.request, reason=f"{MAX_WAITING} reports wait for NATS already")

    async def run(self) -> None:
        """Store queued reports until cancelled."""
        while True:
            report = await self._waiting.get()
            try:
                await self._store(report)
            finally:
                self._waiting.task_done()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all reports are stored, at most `timeout_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._waiting.join()

    async def _store(self, report: ServingEnded) -> None:
        out, attempt = Outgoing(streams.served(report.task, report.request), report, f"served:{report.request}"), 0
        while True:
            try:
                await self._bus.publish(out)
                return
            except Reject as error:
                UNBOOKED.inc()
                log.error("request_not_booked", request=report.request, reason=str(error))
                return
            except MarlaasError as error:
                attempt += 1
                log.warning("report_retried", request=report.request, attempt=attempt, reason=str(error))
                await asyncio.sleep(PAUSE.pause_s(attempt))
