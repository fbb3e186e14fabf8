"""Places of served requests in a pool with latency goals: whether a further request would have its first token in time. No I/O.

A pool's samplers answer a fixed number of requests concurrently. A request beyond them waits until another ends; one behind requests
without a first token waits until theirs are sampled. Both paces are measured here, as replicas' reports are seconds old. A request that
would wait too long is refused immediately: its client can turn elsewhere, and requests that are on time stay so.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from statistics import fmean, median

from common.errors import MarlaasError
from common.fairness.fair_slots import KEPT_SHARE
from common.messages import ServeRequest

RECENT = 16
"""Number of latest values from which each pace is estimated."""
FIRST_HOLD_S = 1.0
"""Assumed seconds for which a request holds its place, before the first has ended."""


class WouldWait(MarlaasError):
    """The request's first token would be `late_s` seconds after the pool's goal; infinite while no sampler is ready."""

    def __init__(self, late_s: float) -> None:
        super().__init__(f"its first token would be {late_s:.2f} s late" if late_s < math.inf else "no sampler is ready")
        self.late_s = late_s


def expected_wait_s(ahead: int, places: int, hold_s: float) -> float:
    """Seconds until one of `places` is free for a request behind `ahead` others, each of which holds its place for `hold_s`; 0 while one is
    free, infinite without places."""
    if ahead < places:
        return 0.0
    return (ahead - places + 1) * hold_s / places if places > 0 else math.inf


def places_open_to(held: int, share: float, places: int) -> int:
    """Number of places in use, over all tenants, from which on a tenant that holds `held` of them waits.

    Samplers keep the last places for tenants that hold few. Before these, as many are kept for tenants below their `share`: otherwise the
    tenant with the most requests would get nearly all places.
    """
    kept = places // KEPT_SHARE
    return max(min(1, places), places - kept * (held >= kept) - max(1, kept) * (held >= share < places))


class PoolPlaces:
    """Requests of one pool in flight through this gateway."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._held: Counter[str] = Counter()
        self._unanswered = 0
        self._weights: dict[str, float] = {}
        """Weights of tenants with requests in flight."""
        self._hold_s = deque[float](maxlen=RECENT)
        """Seconds from being sent to the end."""
        self._first_s = deque[float](maxlen=RECENT)
        """Seconds to the first token of requests with nothing ahead."""
        self._spacing_s = deque[float](maxlen=RECENT)
        """Seconds between the first tokens of requests that waited for each other."""
        self._begun_s = 0.0
        """Time of the latest first token."""

    @property
    def in_flight(self) -> int:
        return self._held.total()

    @contextmanager
    def entered(self, request: ServeRequest, places: int, left_s: float) -> Generator[Callable[[], None]]:
        """Count a request as in flight inside the block; the yielded function must be called at its first token, and may be later.

        `places`: requests that samplers answer concurrently. `left_s`: seconds to the request's deadline.
        Raises: WouldWait, before the block.
        """
        wait_s, has_begun, entered_s = self._wait_s(request, places), False, self._clock_s()
        late_s = wait_s + _median(self._first_s) - left_s
        if wait_s > 0 and late_s > 0:
            raise WouldWait(late_s)

        def begin() -> None:
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._learn(entered_s, is_first=not wait_s)

        self._held[request.tenant] += 1
        self._unanswered += 1
        try:
            yield begin
        finally:
            self._held[request.tenant] -= 1
            if has_begun:
                self._hold_s.append(self._clock_s() - entered_s)
            else:
                self._unanswered -= 1

    def _wait_s(self, request: ServeRequest, places: int) -> float:
        self._held += Counter()  # forget those without any
        self._weights = {name: self._weights[name] for name in self._held} | {request.tenant: request.weight}
        share = places * request.weight / sum(self._weights.values())
        open_to = places_open_to(self._held[request.tenant], share, places)
        for_place_s = expected_wait_s(self.in_flight, open_to, fmean(self._hold_s or [FIRST_HOLD_S]))
        return max(for_place_s, self._unanswered * _median(self._spacing_s))

    def _learn(self, entered_s: float, *, is_first: bool) -> None:
        now_s = self._clock_s()
        self._unanswered -= 1
        took_s, since_s, self._begun_s = now_s - entered_s, now_s - self._begun_s, now_s
        if is_first:
            self._first_s.append(took_s)
        if since_s < took_s or took_s < _median(self._spacing_s):  # it waited when the one before it began; or a long wait is forgotten
            self._spacing_s.append(min(since_s, took_s))


def _median(values: Collection[float]) -> float:
    """Median, which a few requests to versions that must be loaded do not move; 0 without values."""
    return median(values) if values else 0.0
