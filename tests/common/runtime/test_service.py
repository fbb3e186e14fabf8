"""Garbage collection of a service, in a process of its own: the collector is the whole process's."""

import subprocess
import sys

READY = """
import gc, weakref
from common.runtime.health import Health

class Node:
    def __init__(self):
        self.own = self

lost = weakref.ref(Node())
Health().set_ready()
print(lost() is None, gc.get_freeze_count() > 10_000, len(gc.get_objects()) < 10_000)
later = weakref.ref(Node())
for _ in range(5):  # no explicit collection
    kept = [[] for _ in range(20_000)]
print(later() is None)
"""


def test_objects_of_the_start_are_never_scanned_by_the_collector_and_later_garbage_is_freed() -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["True True True", "True"]
