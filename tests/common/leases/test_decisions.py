"""The table of an executor's next steps."""

from itertools import product

from common.leases.reconciler import Do, Side, Want, decide

WAKING = (Side.WAITING, Side.LEASED, Side.LAPSED)


def rows(*sides: Side) -> dict[Want, set[Do]]:
    return {want: {decide(side, want) for side in sides} for want in Want}


def test_every_side_has_a_next_step_for_every_order() -> None:
    assert all(decide(side, want) in Do for side, want in product(Side, Want))


def test_state_wakes_with_a_lease_alone_and_each_wait_begins_with_lock_and_room() -> None:
    assert [pair for pair in product(Side, Want) if decide(*pair) is Do.WAKE] == [(Side.LEASED, Want.WAKE)]
    assert [decide(side, Want.WAKE) for side in (Side.RESTING, Side.WAITING, Side.AWAKE)] == [Do.BEGIN, Do.CLAIM, Do.CLAIM]


def test_overtaken_or_lapsed_wake_gives_all_back() -> None:
    others = rows(*WAKING)
    others.pop(Want.WAKE)
    assert set().union(*others.values()) == set().union(*rows(Side.LAPSED).values()) == {Do.GIVE_UP}


def test_holder_without_a_confirmed_lease_parks_itself_whatever_is_ordered() -> None:
    assert set().union(*rows(Side.OVERDUE).values()) == {Do.FENCE}


def test_parked_state_moves_under_compute_lock() -> None:
    assert [decide(Side.RESTING, want) for want in (Want.NOTHING, Want.PARK, Want.MOVE)] == [Do.WAIT, Do.PARK, Do.PARK_LOCKED]
    assert [decide(Side.AWAKE, want) for want in (Want.NOTHING, Want.PARK, Want.MOVE)] == [Do.WAIT, Do.PARK, Do.PARK]
