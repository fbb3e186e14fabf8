"""What `python -m bench.coserving http` computes from what it saw: no stack."""

from typing import Any

import pytest

from bench.coserving.http import back_s, checks, delays, outcomes, turns
from bench.coserving.stacks import Sent
from bench.harness.measures.tap import Heard
from common.messages import SampledTurn, SampleTurns, TokenRecord, TurnRequest, TurnsSampled
from common.pools import Goals
from tests.support.groups import group_context

GOALS = Goals(ttft_s=0.1, tpot_s=0.01)


def asked(at_s: float, group: int, queue: str = "tiny@b", members: int = 1) -> Heard:
    wanted = [TurnRequest(member=member, turn=1, transcript=TokenRecord(), messages=[], state=b"") for member in range(members)]
    message = SampleTurns(group=group_context("a", group), members=wanted)
    return Heard(at_s, f"prompts.sample.{queue}.a.{group}", message.encode())


def answered(at_s: float, group: int, member: int = 0) -> Heard:
    turn = SampledTurn(member=member, turn=1, transcript=TokenRecord(), reply="", finish="stop", state=b"")
    message = TurnsSampled(group=group_context("a", group), members=[turn])
    return Heard(at_s, f"trajectories.turn.module.a.{group}", message.encode())


def test_delays_after_a_stop_are_by_what_had_happened_to_a_turn() -> None:
    """Stopped at 10: group 0 was answered, one of group 1's two members is left, 2 and 3 wait in the queue, 4 comes later. 9: no home."""
    heard = [asked(7, 0), answered(8, 0), asked(8, 1, members=2), asked(8.5, 9, "tiny"), asked(9, 2), answered(9.5, 1), asked(9.6, 3)]
    heard += [answered(12, 2), asked(13, 4), answered(14, 3), answered(15, 2), answered(17, 1, 1), answered(18, 4), answered(20, 9)]
    found = delays(heard, "tiny@b", stopped_s=10.0, pending=2)
    assert found["turn_p90_s"] == 1.5
    assert {name: (found[name]["turns"], found[name]["max"]) for name in ("begun", "waiting", "later")} == {
        "begun": (1, 7.0),
        "waiting": (2, 4.0),
        "later": (1, 5.0),
    }


def test_turn_without_an_answer_counts_as_answered_at_the_end() -> None:
    found = delays([asked(9, 0), asked(9, 1, "tiny"), answered(30, 1)], "tiny@b", stopped_s=10.0, pending=0)
    assert (found["begun"]["max"], found["waiting"]["turns"]) == (20.0, 0)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ([], 0.0),
        ([(1.0, 64, 56)], 0.0),
        ([(1.0, 64, 40), (4.0, 40, 50)], 0.0),
        ([(1.0, 64, 20), (9.0, 20, 40), (14.0, 40, 56)], 9.0),
        ([(1.0, 64, 20), (9.0, 20, 40)], float("inf")),
    ],
)
def test_room_is_back_when_the_last_change_from_below_three_quarters_is_made(changes: list[tuple[float, int, int]], seconds: float) -> None:
    assert back_s(changes, ended_s=5.0) == seconds


def test_changes_of_direction_are_counted() -> None:
    assert turns([]) == turns([(0.0, 64, 40), (1.0, 40, 30)]) == 0
    assert turns([(0.0, 64, 40), (1.0, 40, 56), (2.0, 56, 64), (3.0, 64, 50)]) == 2


def test_outcomes_are_by_status() -> None:
    assert outcomes([Sent(status=200, is_complete=True), Sent(status=200), Sent(status=503), Sent(status=503)]) == {
        "200 complete": 1,
        "200 not complete": 1,
        "503 not complete": 2,
    }


def test_each_check_says_what_was_seen_and_wanted_and_losses_too() -> None:
    day: dict[str, Any] = {"row": {"tokens_per_s": 1300, "ttft_p99": 90.0, "tpot_p99": 9.0}, "states": ["running"], "at_home": 0.95}
    late = {"turns": 1, "p90": 1.0, "max": 3.0}
    day |= {
        "turns_per_min": [0.2, 1.2],
        "back_s": [0.0, 17.0],
        "stopped": {"turn_p90_s": 1.5, "waiting": late, "begun": late | {"turns": 0}, "later": late},
    }
    overload = {
        "refusal_ms": {"p99": 40.0},
        "attained": 0.94,
        "training_share": 0.2,
        "admitted": [95, 100],
        "states": ["failed", "running"],
    }
    split = {"row": {"tokens_per_s": 1000}, "states": ["running"]}
    found = checks(GOALS, split, day, overload)
    losses = {one["check"]: (one["found"], one["goal"]) for one in found if not one["holds"]}
    assert losses == {
        "day: changes of direction a minute": (1.2, "<= 1"),
        "stopped: turns that it had begun": (0, ">= 1"),
        "overload: admitted requests that met both goals": (0.94, ">= 0.95"),
        "tasks' states other than running": (1, "<= 0"),
    }
    assert len(found) == 15
