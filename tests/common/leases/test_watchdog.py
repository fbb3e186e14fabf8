"""When a process counts as hung. That it then ends is tested with processes (`test_killing.py`)."""

from pathlib import Path

import pytest

from common.accelerators import Function, Load, Tier, WorkDone
from common.bus import Bus
from common.leases.history import KEPT, MIN_LIMIT_S, UNKNOWN_LIMIT_S, History
from common.leases.moves import DRAIN_LIMIT_S, Moves
from common.leases.watchdog import Watchdog
from tests.support.leases.executables import Paper, means


def test_move_is_overdue_after_its_limit_and_nothing_is_afterwards() -> None:
    watchdog = Watchdog()
    with watchdog.watching("park", 100.0):
        assert watchdog.overdue() is None
    with watchdog.watching("park", -0.5):
        assert watchdog.overdue() == "park did not end within -0 s"
        watchdog.postpone(100.0)
        assert watchdog.overdue() is None
    watchdog.postpone(-1000.0)
    assert watchdog.overdue() is None


def test_event_loop_that_stands_still_is_overdue_while_anything_depends_on_it() -> None:
    watchdog = Watchdog(stalled_s=-0.5)
    assert watchdog.overdue() is None
    watchdog.turned()
    assert watchdog.overdue() == "the event loop has stood still for 0 s"
    watchdog.released()
    assert watchdog.overdue() is None


def test_limit_is_ten_times_the_p90_of_its_kind_also_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "moves" / "a.json"
    history = History(file)
    assert history.limit_s(Tier.NONE, Tier.DEVICE) == UNKNOWN_LIMIT_S
    for seconds in [*([1.0] * 8), 5.0, 90.0]:
        history.add(Tier.NONE, Tier.DEVICE, seconds)
    assert history.limit_s(Tier.NONE, Tier.DEVICE) == 50.0
    assert History(file).limit_s(Tier.NONE, Tier.DEVICE) == 50.0
    history.add(Tier.HOST, Tier.DEVICE, 0.1)
    assert history.limit_s(Tier.HOST, Tier.DEVICE) == MIN_LIMIT_S
    file.write_text("{")
    assert History(file).limit_s(Tier.NONE, Tier.DEVICE) == UNKNOWN_LIMIT_S


@pytest.mark.parametrize(
    ("drain_s", "load", "limit_s"),
    [
        (None, Load(), 0.0),
        (None, Load(Function.TRAIN, begun=1), DRAIN_LIMIT_S),
        (None, Load(Function.TRAIN, begun=1, left_s=7.0), 70.0),
        (12.0, Load(Function.GENERATE, begun=1, left_s=7.0), 12.0),
        (0.0, Load(Function.GENERATE, begun=1, left_s=7.0), 0.0),
        (0.0, Load(begun=1), 0.0),  # frozen requests, or a version that is being stored
        (0.0, Load(Function.TRAIN, begun=1, left_s=7.0), 70.0),
        (12.0, Load(Function.SCORE, begun=1), DRAIN_LIMIT_S),
        (0.0, Load(preparing=1), DRAIN_LIMIT_S),
    ],
)
async def test_operations_that_are_waited_for_may_take_ten_times_as_long_as_usual(
    bus: Bus, tmp_path: Path, drain_s: float | None, load: Load, limit_s: float
) -> None:
    paper = Paper()
    paper.load = load
    assert Moves(means(bus, tmp_path, "one", paper)).drain_limit_s(drain_s) == limit_s


async def test_first_step_of_a_process_may_take_ten_times_as_long_as_those_of_earlier_ones(bus: Bus, tmp_path: Path) -> None:
    file = tmp_path / "moves" / "a.json"
    paper = Paper()
    paper.tier, paper.done = Tier.DEVICE, WorkDone({"t": 6000}, busy_s=6.0, pieces=3)
    await Moves(means(bus, tmp_path, "one", paper, history=History(file))).park(Tier.HOST, None, ends_slice=True)
    paper.load = Load(Function.TRAIN, begun=1)
    assert Moves(means(bus, tmp_path, "one", paper, history=History(file))).drain_limit_s(None) == 20.0
    lost = History(tmp_path / "lost.json")
    assert Moves(means(bus, tmp_path, "one", paper, history=lost)).drain_limit_s(None) == DRAIN_LIMIT_S


def test_longest_operation_of_the_newest_counts(tmp_path: Path) -> None:
    history = History(tmp_path / "a.json")
    assert history.operation_s is None
    for seconds in (90.0, 3.0, *([1.0] * (KEPT - 1))):
        history.add_operation(seconds)
    assert History(tmp_path / "a.json").operation_s == 3.0
    assert history.limit_s(Tier.NONE, Tier.DEVICE) == UNKNOWN_LIMIT_S
