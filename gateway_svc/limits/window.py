"""Usage of one tenant's or key's limits: counts in the slots of a sliding minute, and running replies. Pure.

A slot counts until all of it is older than a minute. So usage exceeds the limit in no minute, wherever it begins. A steady
sender gets 60 / (60 + SLOT_S) of the limit.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, Self

from common.messages import HttpUse, SlotUse, StreamsOf

WINDOW_S = 60.0
SLOT_S = 2.0
STREAMS_S = 10.0
"""Seconds after which replies of a gateway that does not renew them stop counting."""
Rate = Literal["requests", "tokens"]
RATES: tuple[Rate, ...] = ("requests", "tokens")
Kind = Literal["requests", "tokens", "streams"]


@dataclass(frozen=True)
class Amounts:
    requests: int = 0
    tokens: int = 0
    streams: int = 0


@dataclass(frozen=True)
class Allowed:
    """Limits by kind. None: no limit, and nothing is counted."""

    requests: int | None = None
    tokens: int | None = None
    streams: int | None = None

    @property
    def is_unlimited(self) -> bool:
        return all(getattr(self, each.name) is None for each in fields(self))


def slot_of(now_s: float) -> int:
    return int(now_s // SLOT_S)


def _no_counts() -> dict[Rate, defaultdict[int, int]]:
    return {rate: defaultdict(int) for rate in RATES}


@dataclass
class Use:
    now_s: float
    counts: dict[Rate, defaultdict[int, int]] = field(default_factory=_no_counts)
    """Rate → slot → amount used in it."""
    streams: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Gateway → its running replies, and the time until which they count."""

    @classmethod
    def of(cls, stored: HttpUse | None, now_s: float) -> Self:
        """Usage from a stored entry, without expired slots and replies."""
        use = cls(now_s)
        for one in stored.slots if stored else ():
            if use._still_counts(one.slot):
                use.counts["requests"][one.slot] = one.requests
                use.counts["tokens"][one.slot] = one.tokens
        use.streams = {one.gateway: (one.streams, one.until_s) for one in (stored.streams if stored else ()) if one.until_s > now_s}
        return use

    def message(self) -> HttpUse:
        numbers = sorted({slot for counts in self.counts.values() for slot, count in counts.items() if count})
        slots = [SlotUse(slot=slot, requests=self.counts["requests"][slot], tokens=self.counts["tokens"][slot]) for slot in numbers]
        streams = [StreamsOf(gateway=name, streams=count, until_s=until_s) for name, (count, until_s) in sorted(self.streams.items())]
        return HttpUse(slots=slots, streams=streams)

    def used(self, kind: Kind) -> int:
        return sum(count for count, _ in self.streams.values()) if kind == "streams" else sum(self.counts[kind].values())

    def add(self, rate: Rate, slot: int, amount: int) -> None:
        """Charge a slot, or refund if negative; an expired slot is ignored."""
        if self._still_counts(slot):
            self.counts[rate][slot] = max(0, self.counts[rate][slot] + amount)

    def hold(self, gateway: str, streams: int) -> None:
        """Set the number of a gateway's running replies."""
        self.streams.pop(gateway, None)
        if streams:
            self.streams[gateway] = (streams, self.now_s + STREAMS_S)

    def reset_s(self, rate: Rate) -> float:
        """Seconds until nothing counts as used."""
        newest = max((slot for slot, count in self.counts[rate].items() if count), default=None)
        return 0.0 if newest is None else self._ends_s(newest) - self.now_s

    def wait_s(self, kind: Kind, amount: int, allowed: int) -> float:
        """Seconds until `amount` fits; infinite if a minute does not allow it. A guess for replies, as only ends of replies make room."""
        if amount > allowed:
            return math.inf
        if kind == "streams":
            return 1.0
        over = self.used(kind) + amount - allowed
        for ends_s, count in self._oldest(kind):
            if over <= 0:
                break
            over -= count
            wait_s = ends_s - self.now_s
            if over <= 0:
                return wait_s
        return 0.0

    def _oldest(self, rate: Rate) -> Iterator[tuple[float, int]]:
        return ((self._ends_s(slot), count) for slot, count in sorted(self.counts[rate].items()))

    def _still_counts(self, slot: int) -> bool:
        return self._ends_s(slot) > self.now_s

    @staticmethod
    def _ends_s(slot: int) -> float:
        return (slot + 1) * SLOT_S + WINDOW_S
