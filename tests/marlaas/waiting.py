"""Waiting for another process."""

import time
from collections.abc import Callable


def until(condition: Callable[[], bool], timeout_s: float = 240.0) -> None:
    """Returns once `condition()` is true; fails the test when that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
