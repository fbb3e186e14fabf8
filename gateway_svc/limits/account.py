"""Account: limits of one tenant or key at this gateway, synchronized with the entry that all gateways share."""

import asyncio
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

import structlog

from common.bus import Bus
from common.errors import MarlaasError, Retry, Unavailable
from common.messages import HttpUse
from common.streams import HTTP_USE_BUCKET
from gateway_svc.limits.window import RATES, Allowed, Amounts, Kind, Rate, Use, slot_of

AHEAD_S = 0.1
"""Seconds of usage, at the present rate, that are prefetched."""
AHEAD_SHARE = 100
"""A prefetch is at most 1/AHEAD_SHARE of the limit."""
LEASE_S = 1.0
"""Seconds after which unused prefetched amounts expire."""
FRESH_S = 0.1
"""Maximum age, in seconds, of the known entry if a request is refused by it; an older one is read again first."""
RENEW_S = 3.0
"""Seconds between renewals of running replies."""
IDLE_S = 120.0
"""Seconds without a request after which an account is dropped."""
MAX_TRIES = 40
BACKOFF_S = 0.5
"""Seconds without new exchanges after a failed one."""
EXCHANGE_S = 2.0
"""Maximum seconds of an exchange with NATS."""

UNKNOWN_USAGE = "usage of the limits is unknown: NATS does not report it"

log = structlog.get_logger()


class StoreUnavailable(Unavailable):
    """Usage is unknown: NATS does not answer, or has no bucket for it yet."""


@dataclass
class LimitMet(Exception):
    """A request exceeds a limit."""

    kind: Kind
    allowed: int
    used: int
    needed: int
    wait_s: float
    """Seconds until the request fits; infinite if it never does."""


@dataclass(eq=False)
class _Want:
    amounts: Amounts
    allowed: Allowed
    granted: asyncio.Future[int]
    """Resolves to the slot that was charged."""


@dataclass
class _Lease:
    """Prefetched amounts that are not used yet."""

    slot: int = 0
    until_s: float = 0.0
    left: dict[Rate, int] = field(default_factory=lambda: dict.fromkeys(RATES, 0))

    def covers(self, amounts: Amounts, now_s: float) -> bool:
        return all(self.has(rate, now_s) >= getattr(amounts, rate) for rate in RATES)

    def has(self, rate: Rate, now_s: float) -> int:
        return self.left[rate] if now_s < self.until_s else 0


@dataclass(frozen=True)
class Standing:
    """State of a rate limit, for the headers of an answer."""

    limit: int
    remaining: int
    reset_s: float


class Account:
    def __init__(self, bus: Bus, key: str, gateway: str) -> None:
        """`key`: key of the shared entry. `gateway`: this replica's name."""
        self._bus = bus
        self._key = key
        self._gateway = gateway
        self._seen: HttpUse | None = None
        self._revision: int | None = None
        """Revision of the entry as last seen; None: unknown."""
        self._seen_s = -1e9
        self._use = Use(0.0)
        self._lease = _Lease()
        self._waiting: list[_Want] = []
        self._given_back: dict[tuple[Rate, int], int] = defaultdict(int)
        """(rate, slot) → correction that is not yet in the entry; negative for a refund."""
        self._streams = 0
        self._held = 0
        """This gateway's replies as stored in the entry."""
        self._exchanging: asyncio.Task[None] | None = None
        self._exchanged_s = self._renewed_s = -1e9
        self._granted: dict[Rate, int] = dict.fromkeys(RATES, 0)
        """Amounts granted since the last exchange, to measure the rate."""
        self.running = 0
        """Number of requests that may still charge the account, counted even if concurrent replies are unlimited."""
        self._used_s = time.monotonic()
        self._unavailable_until_s = 0.0
        self.exchanges = 0

    @property
    def is_idle(self) -> bool:
        """Whether the account can be dropped without losing anything."""
        is_over = time.monotonic() - self._used_s > IDLE_S
        return is_over and not (self.running or self._streams or self._held or self._given_back or self._waiting or self._exchanging)

    def touch(self) -> None:
        """Mark the account as used, so that it is not dropped for IDLE_S."""
        self._used_s = time.monotonic()

    async def take(self, amounts: Amounts, allowed: Allowed) -> int:
        """Charge amounts; one without a limit must be 0. Returns the charged slot, for `correct`. Raises: LimitMet; StoreUnavailable."""
        now_s = time.monotonic()
        if self._exchanging is None and self._lease.covers(amounts, now_s) and self._has_streams(amounts, allowed):
            return self._from_lease(amounts)
        if not self._bus.is_connected or now_s < self._unavailable_until_s:
            raise StoreUnavailable(UNKNOWN_USAGE)
        want = _Want(amounts, allowed, asyncio.get_running_loop().create_future())
        self._waiting.append(want)
        self.exchange()
        try:
            return await want.granted
        except asyncio.CancelledError:
            if want in self._waiting:
                self._waiting.remove(want)
            elif want.granted.done() and not want.granted.cancelled() and want.granted.exception() is None:
                self.give_back(want.granted.result(), amounts)
            raise

    def give_back(self, slot: int, amounts: Amounts) -> None:
        """Refund amounts that were taken and not used."""
        for rate in RATES:
            self.correct(rate, slot, -getattr(amounts, rate))
        self.end(amounts.streams)

    def correct(self, rate: Rate, slot: int | None, amount: int) -> None:
        """Charge the difference between actual and taken usage; negative to refund. `slot`: None for the present one."""
        if amount:
            self._given_back[rate, slot_of(self._now_s()) if slot is None else slot] += amount

    def end(self, streams: int) -> None:
        """End `streams` replies."""
        self._streams -= streams

    def standing(self, rate: Rate, limit: int) -> Standing:
        now_s = time.monotonic()
        used = self._use.used(rate) - self._lease.has(rate, now_s) + sum(by for (of, _), by in self._given_back.items() if of == rate)
        return Standing(limit, min(limit, max(0, limit - used)), max(0.0, self._use.reset_s(rate) - (now_s - self._seen_s)))

    def upkeep(self) -> None:
        """Report refunds and ended replies to the other gateways, and renew running replies; call it periodically."""
        if self._given_back or self._streams != self._held or self._is_due:
            self.exchange()

    @property
    def _is_due(self) -> bool:
        """Whether replies must be renewed."""
        return self._held > 0 and time.monotonic() - self._renewed_s > RENEW_S

    def exchange(self) -> None:
        if self._exchanging is None:
            self._exchanging = asyncio.create_task(self._exchange_all())

    async def close(self) -> None:
        """Report the last usage; raises nothing."""
        self.exchange()
        if self._exchanging is not None:
            await self._exchanging

    # ------------------------------------------------------------------------------------------------------- exchanges

    async def _exchange_all(self) -> None:
        try:
            while True:
                await self._exchange()
                if not self._waiting:
                    return
        finally:
            self._exchanging = None

    async def _exchange(self) -> None:
        """Run one exchange for all waiting requests; if it fails, all of them fail."""
        batch, self._waiting = self._waiting, []
        try:
            async with asyncio.timeout(EXCHANGE_S):
                await self._settle(batch)
        except (MarlaasError, TimeoutError) as error:
            self._revision = None
            log.warning("http_use_unknown", reason=str(error) or type(error).__name__)
            self._unavailable_until_s = time.monotonic() + BACKOFF_S
            for want in batch:
                if not want.granted.done():
                    want.granted.set_exception(StoreUnavailable(UNKNOWN_USAGE))

    async def _settle(self, batch: list[_Want]) -> None:
        """Grant or refuse the requests of a batch, and change the shared entry by compare-and-set. Raises: MarlaasError."""
        for attempt in range(MAX_TRIES):
            fresh = attempt > 0 or self._revision is None
            if fresh:
                await self._look()
            use, wants = Use.of(self._seen, self._now_s()), [want for want in batch if not want.granted.done()]
            given_back = dict(self._given_back)
            for (rate, slot), amount in given_back.items():
                use.add(rate, slot, amount)
            granted, refused, lease = self._share_out(use, wants)
            if refused and not fresh and time.monotonic() - self._seen_s > FRESH_S:
                self._revision = None  # other gateways may have refunded something meanwhile
                continue
            if granted or given_back or self._streams != self._held or self._is_due:
                held = self._streams + sum(want.amounts.streams for want in granted)
                use.hold(self._gateway, held)
                if not await self._store(use):
                    continue
                self._held, self._renewed_s = held, time.monotonic()
            self._use, self._exchanged_s = use, time.monotonic()
            self._conclude(granted, refused, given_back, lease)
            return
        raise Unavailable(f"{MAX_TRIES} others were faster")

    async def _look(self) -> None:
        found = await self._bus.kv.find(HTTP_USE_BUCKET, self._key, HttpUse)
        self._seen, self._revision = (found.value, found.revision) if found else (None, 0)
        self._seen_s = time.monotonic()

    async def _store(self, use: Use) -> bool:
        """Store the entry; False if another gateway changed it first."""
        assert self._revision is not None
        message = use.message()
        try:
            self._revision = await self._bus.kv.replace(HTTP_USE_BUCKET, self._key, message, revision=self._revision)
        except Unavailable:
            raise
        except Retry:
            self._revision = None
            await asyncio.sleep(random.uniform(0, 0.004))
            return False
        self._seen, self._seen_s, self.exchanges = message, time.monotonic(), self.exchanges + 1
        return True

    def _share_out(self, use: Use, wants: list[_Want]) -> tuple[list[_Want], list[tuple[_Want, LimitMet]], _Lease]:
        """Charge to `use`, in order, the requests that fit, then a prefetch. Returns granted and refused requests, and the new lease."""
        slot, now_s = slot_of(use.now_s), time.monotonic()
        lease = _Lease(slot, now_s + LEASE_S, {rate: self._lease.has(rate, now_s) for rate in RATES})
        granted, refused = list[_Want](), list[tuple[_Want, LimitMet]]()
        use.hold(self._gateway, self._streams)
        for want in wants:
            met = _met(use, want, lease)
            if met is not None:
                refused.append((want, met))
                continue
            for rate in RATES:
                from_lease = min(lease.left[rate], getattr(want.amounts, rate))
                lease.left[rate] -= from_lease
                use.add(rate, slot, getattr(want.amounts, rate) - from_lease)
            if want.amounts.streams:
                use.hold(self._gateway, use.streams.get(self._gateway, (0, 0.0))[0] + want.amounts.streams)
            granted.append(want)
        if granted and not refused:
            self._take_ahead(use, lease, granted[-1].allowed, granted)
        return granted, refused, lease

    def _take_ahead(self, use: Use, lease: _Lease, allowed: Allowed, granted: list[_Want]) -> None:
        elapsed_s = time.monotonic() - self._exchanged_s
        if elapsed_s > 1.0:
            return
        for rate in RATES:
            limit = getattr(allowed, rate)
            if limit is None:
                continue
            used = self._granted[rate] + sum(getattr(want.amounts, rate) for want in granted)
            ahead = min(int(used / max(elapsed_s, AHEAD_S) * AHEAD_S), limit // AHEAD_SHARE, limit - use.used(rate)) - lease.left[rate]
            if ahead > 0:
                use.add(rate, lease.slot, ahead)
                lease.left[rate] += ahead

    def _conclude(
        self, granted: list[_Want], refused: list[tuple[_Want, LimitMet]], given_back: dict[tuple[Rate, int], int], lease: _Lease
    ) -> None:
        self._lease = lease
        self._granted = dict.fromkeys(RATES, 0)
        for place, amount in given_back.items():
            self._given_back[place] -= amount
            if not self._given_back[place]:
                del self._given_back[place]
        for want in granted:
            self._streams += want.amounts.streams
            if want.granted.done():  # its client disconnected meanwhile
                self.give_back(lease.slot, want.amounts)
            else:
                want.granted.set_result(lease.slot)
        for want, met in refused:
            if not want.granted.done():
                want.granted.set_exception(met)

    # ----------------------------------------------------------------------------------------------------------- local

    def _has_streams(self, amounts: Amounts, allowed: Allowed) -> bool:
        """Whether the new replies fit without an exchange: the entry still counts enough replies of this gateway that have ended."""
        return not amounts.streams or allowed.streams is None or self._streams + amounts.streams <= min(self._held, allowed.streams)

    def _from_lease(self, amounts: Amounts) -> int:
        for rate in RATES:
            self._lease.left[rate] -= getattr(amounts, rate)
            self._granted[rate] += getattr(amounts, rate)
        self._streams += amounts.streams
        return self._lease.slot

    def _now_s(self) -> float:
        return self._bus.clock.now_s()


def _met(use: Use, want: _Want, lease: _Lease) -> LimitMet | None:
    """The first limit that the request exceeds, or None."""
    kinds: tuple[Kind, ...] = ("requests", "tokens", "streams")
    for kind in kinds:
        allowed, needed = getattr(want.allowed, kind), getattr(want.amounts, kind)
        if allowed is None or not needed:
            continue
        missing = needed if kind == "streams" else needed - min(needed, lease.left[kind])
        if missing and use.used(kind) + missing > allowed:
            return LimitMet(kind, allowed, use.used(kind), needed, use.wait_s(kind, needed, allowed))
    return None
