"""Terms of tenants, asked of the scheduler by the gateway's own key, and kept for a moment."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from common import streams
from common.bus import Bus
from common.errors import MarlaasError
from common.messages import AskTerms, TermsAnswer

KEPT_S = 2.0
"""Seconds after which they are asked for anew."""
ANSWER_S = 2.0
"""Maximum seconds for an answer; without one, what was known holds."""
MAX_KNOWN = 10_000

log = structlog.get_logger()


@dataclass
class _Known:
    answer: TermsAnswer | None
    """None: never answered."""
    asked_s: float


class Terms:
    def __init__(self, bus: Bus, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._monotonic_s = monotonic_s
        self._known: dict[str, _Known] = {}
        self._asking: dict[str, asyncio.Task[TermsAnswer | None]] = {}

    async def of(self, tenant: str) -> TermsAnswer | None:
        """None while the scheduler has never answered about the tenant."""
        known = self._known.get(tenant)
        if known is not None and self._monotonic_s() - known.asked_s < KEPT_S:
            return known.answer
        asking = self._asking.get(tenant)
        if asking is None:
            asking = self._asking[tenant] = asyncio.create_task(self._ask(tenant, known.answer if known else None))
            asking.add_done_callback(lambda _: self._asking.pop(tenant, None))
        return await asyncio.shield(asking)

    async def _ask(self, tenant: str, before: TermsAnswer | None) -> TermsAnswer | None:
        answer = before
        try:
            if self._bus.is_connected:
                answer = (await self._bus.requests.ask(streams.ask(tenant, "terms"), AskTerms(), timeout_s=ANSWER_S)).read(TermsAnswer)
        except MarlaasError as error:  # no scheduler answers
            log.warning("terms_unknown", tenant=tenant, reason=str(error))
        self._known.pop(tenant, None)
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[tenant] = _Known(answer, self._monotonic_s())
        return answer
