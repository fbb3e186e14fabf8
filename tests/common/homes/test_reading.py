"""When an executor takes from another's queue."""

import pytest

from common.homes.reading import Patience, Sibling, Taking, helps_after_s, taking

PATIENCE = Patience(move_s=1.0, max_wait_s=60.0)
GONE = Sibling(is_able=False, is_awake=False, waits_s=0.0)


def there(waits_s: float = 0.0, *, is_awake: bool = True) -> Sibling:
    return Sibling(True, is_awake, waits_s)


@pytest.mark.parametrize(
    ("sibling", "load", "found"),
    [
        (GONE, 1.0, Taking.OVER),
        (there(0.9), 0.0, Taking.NOTHING),
        (there(1.1), 0.0, Taking.HELP),
        (there(1.1, is_awake=False), 0.0, Taking.HELP),
        (there(1.4), 0.5, Taking.NOTHING),
        (there(1.6), 0.5, Taking.HELP),
        (there(1.8), 0.75, Taking.HELP),
        (there(59.0), 0.76, Taking.NOTHING),
        (there(59.0, is_awake=False), 1.0, Taking.NOTHING),
        (there(61.0), 1.0, Taking.OVER),
        (there(61.0, is_awake=False), 1.0, Taking.OVER),
    ],
)
def test_message_is_taken_from_who_cannot_work_or_after_it_waited_longer_than_a_move(sibling: Sibling, load: float, found: Taking) -> None:
    assert taking(sibling, Taking.NOTHING, 0.0, PATIENCE, load=load) is found


def test_queue_that_was_taken_over_stays_so_until_its_executor_is_awake_or_nothing_comes() -> None:
    parked = there(0.0, is_awake=False)
    assert taking(parked, Taking.OVER, 59.0, PATIENCE, load=1.0) is Taking.OVER
    assert taking(parked, Taking.OVER, 61.0, PATIENCE, load=1.0) is Taking.NOTHING
    assert taking(there(), Taking.OVER, 0.0, PATIENCE, load=1.0) is Taking.NOTHING


def test_least_loaded_helps_first_and_a_steady_wait_does_not_swing() -> None:
    after_s = [helps_after_s(load / 100, 1.0) for load in range(101)]
    able = [one for one in after_s if one is not None]
    assert able == sorted(able) and (len(able), able[0], able[-1]) == (76, 1.0, 1.75)
    for load in range(76):
        found = [taking(there(waits / 100), Taking.NOTHING, 0.0, PATIENCE, load=load / 100) for waits in range(300)]
        assert found == sorted(found, key=lambda one: one is Taking.HELP), "longer waits never end the help"
