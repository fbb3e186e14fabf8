"""When an executor takes from another's queue."""

import pytest

from common.homes.reading import Patience, Sibling, Taking, taking

PATIENCE = Patience(move_s=1.0, max_wait_s=60.0)
GONE = Sibling(is_able=False, is_awake=False, waits_s=0.0)


def there(waits_s: float = 0.0, *, is_awake: bool = True) -> Sibling:
    return Sibling(True, is_awake, waits_s)


@pytest.mark.parametrize(
    ("sibling", "is_idle", "found"),
    [
        (GONE, False, Taking.OVER),
        (there(0.9), True, Taking.NOTHING),
        (there(1.1), True, Taking.HELP),
        (there(1.1, is_awake=False), True, Taking.HELP),
        (there(59.0, is_awake=False), False, Taking.NOTHING),
        (there(61.0), False, Taking.OVER),
        (there(61.0, is_awake=False), False, Taking.OVER),
    ],
)
def test_message_is_taken_from_who_cannot_work_or_after_it_waited_longer_than_a_move(
    sibling: Sibling, is_idle: bool, found: Taking
) -> None:
    assert taking(sibling, Taking.NOTHING, 0.0, PATIENCE, is_idle=is_idle) is found


def test_queue_that_was_taken_over_stays_so_until_its_executor_is_awake_or_nothing_comes() -> None:
    parked = there(0.0, is_awake=False)
    assert taking(parked, Taking.OVER, 59.0, PATIENCE, is_idle=False) is Taking.OVER
    assert taking(parked, Taking.OVER, 61.0, PATIENCE, is_idle=False) is Taking.NOTHING
    assert taking(there(), Taking.OVER, 0.0, PATIENCE, is_idle=False) is Taking.NOTHING
