"""A request that would wait beyond its pool's goal is refused at once; one that would not, never."""

import heapq
import itertools
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from common.messages import ServedSampling, ServeRequest
from gateway_svc.serving.places import FIRST_HOLD_S, PoolPlaces, WouldWait, expected_wait_s, places_open_to

TTFT_S = 0.072
PREFILL_S = 0.015


def request(tenant: str = "acme", weight: float = 1.0) -> ServeRequest:
    return ServeRequest(
        request="q",
        attempt=0,
        gateway="g",
        tenant=tenant,
        key=None,
        weight=weight,
        pool="tiny",
        adapter=None,
        text="a",
        sampling=ServedSampling(seed=1),
        first_token_by_s=1.0,
    )


@dataclass
class Load:
    """Poisson arrivals of one tenant. `hold_s`: mean seconds of decoding."""

    rate: float
    tenant: str = "acme"
    weight: float = 1.0
    hold_s: float = 0.9
    cold: float = 0.0
    """Fraction of requests whose version must be loaded, for half a second."""


@dataclass
class Seen:
    asked: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    met: Counter[str] = field(default_factory=Counter[str])

    def attained(self, tenant: str = "acme") -> float:
        return self.met[tenant] / (self.asked[tenant] - self.refused[tenant])

    def admitted(self, tenant: str = "acme") -> int:
        return self.asked[tenant] - self.refused[tenant]

    def share_refused(self, tenant: str = "acme") -> float:
        return self.refused[tenant] / self.asked[tenant]


class Sampler:
    """`seats` concurrent requests; prompts are computed one after another."""

    def __init__(self, seats: int, seed: int, *, refuses: bool = True) -> None:
        self.now_s = 0.0
        self._seats = seats
        self._random = random.Random(seed)
        self._places = PoolPlaces(lambda: self.now_s)
        self._left_s = TTFT_S if refuses else 1e9
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._free = seats
        self._queue: deque[Callable[[], None]] = deque()
        self._prefilled_s = 0.0
        self.seen = Seen()

    def run(self, loads: Sequence[Load], until_s: float) -> Seen:
        for load in loads:
            self._arrive_next(load, until_s)
        while self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        assert self._places.in_flight == 0
        return self.seen

    def _at(self, when_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._numbers), event))

    def _arrive_next(self, load: Load, until_s: float) -> None:
        when_s = self.now_s + self._random.expovariate(load.rate)
        if when_s < until_s:
            self._at(when_s, lambda: self._arrive(load, until_s))

    def _arrive(self, load: Load, until_s: float) -> None:
        self._arrive_next(load, until_s)
        asked_s, block = self.now_s, ExitStack()
        self.seen.asked[load.tenant] += 1
        try:
            begin = block.enter_context(self._places.entered(request(load.tenant, load.weight), self._seats, self._left_s))
        except WouldWait as refusal:
            assert refusal.late_s > 0
            self.seen.refused[load.tenant] += 1
            return
        load_s = 0.5 if self._random.random() < load.cold else 0.0
        decode_s = self._random.expovariate(1 / load.hold_s) if load.hold_s else 0.0

        def sit() -> None:
            self._free -= 1
            self._at(self.now_s + load_s, prefill)

        def prefill() -> None:
            self._prefilled_s = max(self._prefilled_s, self.now_s) + PREFILL_S
            self._at(self._prefilled_s, answer)

        def answer() -> None:
            begin()
            self.seen.met[load.tenant] += self.now_s - asked_s <= TTFT_S
            self._at(self.now_s + decode_s, end)

        def end() -> None:
            block.close()
            self._free += 1
            if self._queue:
                self._queue.popleft()()

        if self._free:
            sit()
        else:
            self._queue.append(sit)


SEATS = 16
CAPACITY = SEATS / (0.9 + PREFILL_S)


HALF_A_MINUTE_S = 30.0


@pytest.mark.parametrize("times", [2.0, 10.0])
def test_beyond_capacity_admitted_requests_are_in_time_and_the_seats_stay_in_use(times: float) -> None:
    naive = Sampler(SEATS, 1, refuses=False).run([Load(times * CAPACITY)], HALF_A_MINUTE_S)
    seen = Sampler(SEATS, 1).run([Load(times * CAPACITY)], HALF_A_MINUTE_S)
    assert naive.attained() < 0.1
    assert seen.attained() > 0.97
    assert seen.admitted() > 0.75 * CAPACITY * HALF_A_MINUTE_S


def test_where_prompts_take_all_the_time_their_pace_counts_not_the_seats() -> None:
    seen = Sampler(SEATS, 1).run([Load(2 / PREFILL_S, hold_s=0.02)], HALF_A_MINUTE_S)
    assert seen.attained() > 0.97
    assert seen.admitted() > 0.9 * HALF_A_MINUTE_S / PREFILL_S


@pytest.mark.parametrize("cold", [0.0, 0.1])
def test_far_below_capacity_hardly_any_is_refused_even_beside_versions_that_must_be_loaded(cold: float) -> None:
    seen = Sampler(SEATS, 1).run([Load(0.3 * CAPACITY, cold=cold)], HALF_A_MINUTE_S)
    assert seen.share_refused() <= 0.02


def test_equal_tenants_get_equally_much() -> None:
    seen = Sampler(SEATS, 1).run([Load(CAPACITY), Load(CAPACITY, "globex")], 4 * HALF_A_MINUTE_S)
    assert seen.admitted() == pytest.approx(seen.admitted("globex"), rel=0.1)


def test_tenant_below_its_share_is_seldom_refused_beside_a_flood() -> None:
    seen = Sampler(SEATS, 1).run([Load(10 * CAPACITY), Load(0.4 * CAPACITY, "globex")], HALF_A_MINUTE_S)
    assert seen.share_refused("globex") < 0.35 < 0.9 < seen.share_refused()
    assert min(seen.attained("globex"), seen.attained()) > 0.97


def test_places_go_by_weight() -> None:
    loads = [Load(3 * CAPACITY), Load(3 * CAPACITY, "globex", weight=3.0)]
    seen = Sampler(SEATS, 1).run(loads, 4 * HALF_A_MINUTE_S)
    assert 2 < seen.admitted("globex") / seen.admitted() < 4


@pytest.mark.parametrize(
    ("held", "share", "open_to"),
    [(0, 8, 16), (1, 8, 16), (2, 8, 14), (8, 8, 12), (12, 16, 14)],
)
def test_last_places_are_for_tenants_that_hold_few(held: int, share: float, open_to: int) -> None:
    assert places_open_to(held, share, 16) == open_to


def test_one_place_is_open_to_everybody_and_none_to_nobody() -> None:
    for held in (0, 1):
        assert places_open_to(held, 0.5, 1) == 1
        assert places_open_to(held, 0.0, 0) == 0


def test_wait_grows_with_those_ahead_and_is_infinite_without_places() -> None:
    assert [expected_wait_s(ahead, 4, 2.0) for ahead in (0, 3, 4, 5)] == [0.0, 0.0, 0.5, 1.0]
    assert expected_wait_s(0, 0, 1.0) == math.inf


class Room:
    """Requests in flight on a clock of the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.places = PoolPlaces(lambda: self.now_s)

    def enters(self, places: int = 2, left_s: float = TTFT_S, tenant: str = "acme") -> tuple[Callable[[], None], Callable[[], None]]:
        """What its first token calls, and what its end does."""
        block = ExitStack()
        return block.enter_context(self.places.entered(request(tenant), places, left_s)), block.close


def test_refusal_says_how_late_and_leaves_nothing_behind() -> None:
    room = Room()
    ends = [room.enters()[1] for _ in range(2)]
    with pytest.raises(WouldWait, match=r"0\.43 s late") as caught:
        room.enters()
    assert caught.value.late_s == pytest.approx(FIRST_HOLD_S / 2 - TTFT_S)
    room.enters(left_s=60.0)[1]()  # one with more time waits
    assert room.places.in_flight == 2
    for end in ends:
        end()
    assert room.places.in_flight == 0
    room.enters()[1]()


def test_without_a_sampler_it_is_refused_and_one_that_is_late_anyway_finds_a_free_place() -> None:
    room = Room()
    with pytest.raises(WouldWait, match="no sampler is ready"):
        room.enters(places=0)
    room.enters(left_s=-1.0)[1]()


def test_requests_without_an_answer_count_once_and_do_not_teach() -> None:
    room = Room()
    begin, end = room.enters()
    begin()
    begin()
    room.now_s = 0.5
    end()
    for _ in range(20):
        gone = room.enters()[1]
        room.now_s += 30.0
        gone()
    ends = [room.enters()[1] for _ in range(2)]
    with pytest.raises(WouldWait) as caught:
        room.enters(left_s=0.0)
    assert caught.value.late_s == pytest.approx(0.25)
    for end in ends:
        end()


def test_tenants_that_are_gone_are_forgotten() -> None:
    room = Room()
    for number in range(100):
        room.enters(tenant=f"t{number}")[1]()
    room.enters()[1]()
    assert set(room.places._weights) == {"acme"}
    assert set(room.places._held) <= {"acme"}
