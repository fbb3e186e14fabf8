"""Home for (kind, key) among the replicas of a pool."""

from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given, settings

from scheduler_svc.training.decisions.homes import Keyed, Move, Why, homes

A, B, C = "a", "b", "c"
SAMPLERS, TRAINERS = ("rollout", "tiny"), ("trainer", "tiny")


def task(key: str, home: str | None = None, *, replicas: tuple[str, ...] = (A, B), **changes: object) -> Keyed:
    """Keeps a sampler busy for 3 of 10 s, and has 20 steps left."""
    one = Keyed("task", key, SAMPLERS, replicas, load=0.3, left_s=60.0, home=home, move_s=0.1)
    return replace(one, **changes)  # type: ignore[arg-type]


def moved(keys: list[Keyed], found: list[Move]) -> list[Keyed]:
    chosen = {id(move.keyed): move.replica for move in found}
    return [replace(one, home=chosen.get(id(one), one.home)) for one in keys]


def test_new_keys_of_every_kind_are_spread() -> None:
    found = homes([task("s"), task("t", kind="group"), task("u", kind="prefix"), task("v")])
    assert sorted(move.replica for move in found) == [A, A, B, B]
    assert {move.why for move in found} == {Why.FIRST}


def test_new_key_goes_where_other_pools_leave_most_room() -> None:
    other = task("other", A, replicas=(A,), pool=("rollout", "other"), load=0.9)
    assert [move.replica for move in homes([other, task("t")])] == [B]


def test_lost_home_is_left_and_nothing_else_moves() -> None:
    found = homes([task("s", A, replicas=(B, C)), task("t", B, replicas=(B, C))])
    assert [(move.keyed.key, move.replica, move.why) for move in found] == [("s", C, Why.LOST)]


def test_key_that_no_replica_can_serve_keeps_its_home() -> None:
    assert homes([task("s", A, replicas=()), task("t", None, replicas=())]) == []


def test_crowded_key_moves_one_at_a_time_until_no_move_gains() -> None:
    keys = [task(f"t{number}", A) for number in range(6)]
    for _ in range(3):
        found = homes(keys)
        assert [(move.replica, move.why) for move in found] == [(B, Why.GAIN)]
        keys = moved(keys, found)
    assert homes(keys) == []
    assert sorted(str(one.home) for one in keys) == [A] * 3 + [B] * 3


def test_overloaded_replicas_are_balanced_too() -> None:
    keys = [task(f"t{number}", A if number < 6 else B, load=0.7) for number in range(8)]
    assert [(move.replica, move.why) for move in homes(keys)] == [(B, Why.GAIN)]


def test_move_that_costs_more_than_it_gains_is_not_made() -> None:
    """Work of the crowd waits 1.5 times as long as it takes; elsewhere it would not wait."""
    crowd = [task(f"t{number}", A, move_s=50.0) for number in range(6)]
    assert [move.replica for move in homes(crowd)] == [B]
    assert homes([replace(one, move_s=91.0) for one in crowd]) == []
    assert homes([replace(one, left_s=3.0) for one in crowd]) == [], "a single step is left"


def test_key_that_moved_lately_stays() -> None:
    assert homes([task(f"t{number}", A, stays=True) for number in range(6)]) == []


def test_replicas_of_several_pools_with_one_name_share_its_time() -> None:
    trained = task("t", pool=TRAINERS, load=0.1)
    assert [move.replica for move in homes([task("t", A, load=0.6), trained])] == [B]


@st.composite
def key_sets(draw: st.DrawFn) -> list[Keyed]:
    seconds, found = st.floats(0.05, 30.0), list[Keyed]()
    for number in range(draw(st.integers(1, 9))):
        replicas = tuple(draw(st.lists(st.sampled_from((A, B, C)), unique=True, max_size=3)))
        pool, home = draw(st.sampled_from((SAMPLERS, TRAINERS))), draw(st.sampled_from((None, A, B, C)))
        load, left_s, move_s = draw(st.floats(0.0, 1.0)), draw(seconds), draw(st.floats(0, 20))
        found.append(Keyed("task", f"t{number}", pool, replicas, load, left_s, home, move_s, draw(st.booleans())))
    return found


@settings(max_examples=300, deadline=None)
@given(key_sets())
def test_moves_end_on_unchanged_input_and_stay_within_the_choices(keys: list[Keyed]) -> None:
    for look in range(200):
        found = homes(keys)
        for move in found:
            assert move.replica in move.keyed.replicas and move.replica != move.keyed.home
            assert move.why is Why.GAIN or look == 0, "all have a home after the first look"
            assert move.why is not Why.GAIN or not move.keyed.stays
        assert len({id(move.keyed) for move in found}) == len(found)
        if not found:
            break
        keys = moved(keys, found)
    else:
        raise AssertionError("keys move for ever")
    assert all(one.home in one.replicas for one in keys if one.replicas), "a lost home is left"
