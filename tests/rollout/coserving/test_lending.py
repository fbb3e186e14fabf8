"""Rollout sequences beside served requests: the room follows what serving leaves, and does not swing."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from rollout_svc.coserving.figures import Figures
from rollout_svc.coserving.lender import STALLED_S, Stalls, Window
from rollout_svc.coserving.lending import GROWTH_S, MIN_CHANGE, WINDOW_S, Room, Use, lend

MOST = 64


@dataclass
class Day:
    """Rooms of each second beside an engine that can run `runs(second)` rollouts."""

    rooms: list[int]

    @classmethod
    def of(cls, runs: Callable[[int], float], seconds: int, serving_kv: Callable[[int], float] = lambda _: 0.0) -> "Day":
        room, inside = Room.of(MOST, 0.1, -100.0), float(MOST)
        seen = deque([(0.0, inside, serving_kv(0))] * int(WINDOW_S), maxlen=int(WINDOW_S))
        rooms: list[int] = []
        for second in range(seconds):
            # Rollouts end after about ten seconds; new ones come as fast as messages do.
            inside = max(room.sequences, inside - max(1, inside / 10)) if inside > room.sequences else min(room.sequences, inside + 16)
            seen.append((max(0.0, inside - runs(second)), inside, serving_kv(second)))
            held, wanted, kv = (sum(values) for values in zip(*seen, strict=True))
            room = lend(room, Use(kv / len(seen), held / wanted), float(second))
            rooms.append(room.sequences)
        return cls(rooms)

    @property
    def turns(self) -> int:
        """Changes of direction."""
        changes = [after - before for before, after in pairwise(self.rooms) if after != before]
        return sum(one * other < 0 for one, other in pairwise(changes))

    def seconds_until(self, sequences: int, *, from_s: int) -> int:
        return next(second for second in range(from_s, len(self.rooms)) if self.rooms[second] >= sequences) - from_s


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("runs", [4, 8, 16, 24, 32, 40, 46, 48, 50, 54, 56, 58, 62, 64])
def test_room_beside_a_steady_load_settles(runs: int, noise: float) -> None:
    drawn = random.Random(runs)
    day = Day.of(lambda _: max(0.0, min(MOST, runs * (1 + drawn.uniform(-noise, noise)))), 600)
    assert day.turns <= (10 if noise == 0.3 else 1), "changes of direction in ten minutes"
    assert runs <= day.rooms[-1] + MOST * MIN_CHANGE, "rollouts that can run are taken"
    assert runs > MOST * 0.75 or day.rooms[-1] < MOST, "long waits are left to others"


@pytest.mark.parametrize("every", [10, 11, 20, 30])
def test_bursts_of_two_seconds_belong_to_the_engine(every: int) -> None:
    assert {*Day.of(lambda second: 0 if second % every < 2 else MOST, 600).rooms} == {MOST}


@pytest.mark.parametrize("runs", [0, 8, 16])
@pytest.mark.parametrize("lasts_s", [20, 60])
def test_room_is_back_within_twenty_seconds_of_a_burst(lasts_s: int, runs: int) -> None:
    day = Day.of(lambda second: runs if 20 <= second < 20 + lasts_s else MOST, 200)
    assert min(day.rooms) <= MOST / 2
    assert day.seconds_until(MOST * 3 // 4, from_s=20 + lasts_s) <= 17
    assert day.seconds_until(MOST, from_s=20 + lasts_s) <= 22
    assert day.turns == 1


@pytest.mark.parametrize(("share", "most"), [(0.0, 64), (0.1, 64), (0.2, 64), (0.3, 56), (0.5, 40), (0.8, 26)])
def test_room_follows_servings_share_of_the_cache(share: float, most: int) -> None:
    wobble = random.Random(1)
    day = Day.of(lambda _: MOST, 600, lambda _: share * (1 + wobble.uniform(-0.02, 0.02)))
    assert (day.turns, day.rooms[-1] <= most) == (0, True)
    assert day.rooms[-1] >= MOST * (1 - share)


def test_more_use_never_gives_more_room() -> None:
    drawn = random.Random(3)
    for _ in range(5000):
        most = drawn.randint(1, 256)
        before = replace(Room.of(most, drawn.random(), 0.0), sequences=drawn.randint(1, most))
        before = replace(before, sequences=max(before.sequences, before.least))
        less, more = sorted((drawn.random(), drawn.random()))
        now_s, kv = drawn.uniform(0, 2 * GROWTH_S), drawn.random() / 4
        rooms = [lend(before, Use(kv, withheld), now_s) for withheld in (less, more)]
        assert rooms[1].sequences <= rooms[0].sequences
        assert all(before.least <= room.sequences <= most for room in rooms)
        assert all(room is before or room.since_s == now_s for room in rooms)


def test_room_never_falls_below_trainings_share() -> None:
    room = Room.of(64, 0.5, 0.0)
    for second in range(60):
        room = lend(room, Use(1.0, 1.0), float(second))
    assert room.sequences >= room.least == 32
    assert Room.of(3, 0.0, 0.0).least == 1


def grown(steps: float, **values: float) -> Figures:
    return Figures(**{"steps": steps, "rollout_steps": 8 * steps, "blocks": 100.0, **values})


def test_use_is_the_mean_of_ten_seconds() -> None:
    window = Window()
    assert (window.use, window.held) == (Use(0.0, 0.0), 0.0)
    for second in range(31):
        held = 400.0 * max(0, second - 25)
        window.add(grown(100.0 * second, withheld_steps=held, serving_blocks=50.0 if second > 25 else 0.0))
    assert (window.use.serving_kv, window.use.withheld) == pytest.approx((0.25, 0.25))
    assert window.held == pytest.approx(2.0)


def test_engine_without_steps_withholds_nothing_and_a_new_one_starts_anew() -> None:
    window = Window()
    for _ in range(30):
        window.add(grown(1000.0, withheld_steps=500.0, serving_blocks=90.0))
    assert (window.use, window.held) == (Use(0.0, 0.0), 0.0)
    window.add(grown(10.0, withheld_steps=5.0))
    assert (window.use, window.held) == (Use(0.0, 0.0), 0.0)
    window.add(grown(20.0, withheld_steps=45.0))
    assert window.use.withheld == pytest.approx(0.5)


def test_request_is_stalled_after_two_seconds_with_the_same_number_of_tokens() -> None:
    stalls = Stalls()
    assert stalls.look({"new": 0, "running": 5}, 0.0) == set()
    assert stalls.look({"new": 0, "running": 6}, STALLED_S - 0.1) == set()
    assert stalls.look({"new": 0, "running": 7, "late": 0}, STALLED_S) == {"new"}
    assert stalls.look({"late": 0}, STALLED_S + 1) == set()
    assert stalls.look({"late": 0, "new": 0}, 2 * STALLED_S) == {"late"}, "one that left and came back begins anew"
