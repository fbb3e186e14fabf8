"""Order of calls for the next free worker."""

import random

from env_svc.concurrency.fair_queue import FairQueue


def test_a_task_never_holds_all_workers() -> None:
    queue: FairQueue[int] = FairQueue(workers=3)
    for item in range(5):
        queue.put("greedy", item)
    assert [queue.take(), queue.take(), queue.take()] == [("greedy", 0), ("greedy", 1), None]
    queue.put("other", 9)
    assert queue.take() == ("other", 9)


def test_a_single_worker_serves_everyone() -> None:
    queue: FairQueue[int] = FairQueue(workers=1)
    queue.put("a", 1)
    queue.put("a", 2)
    assert queue.take() == ("a", 1)
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == ("a", 2)


def test_the_task_with_fewest_running_goes_first() -> None:
    queue: FairQueue[int] = FairQueue(workers=4)
    for item in range(3):
        queue.put("busy", item)
    assert queue.take() == ("busy", 0)
    queue.put("late", 7)
    assert queue.take() == ("late", 7)


def test_tasks_with_as_much_running_take_turns() -> None:
    queue: FairQueue[int] = FairQueue(workers=2)
    for item in range(3):
        for task in ("a", "b", "c"):
            queue.put(task, item)
    served: list[str] = []
    for _ in range(9):
        taken = queue.take()
        assert taken is not None
        served.append(taken[0])
        queue.done(taken[0])
    assert served == ["a", "b", "c"] * 3


def test_nothing_is_remembered_of_tasks_that_are_gone() -> None:
    queue: FairQueue[int] = FairQueue(workers=2)
    chance = random.Random(0)
    running: list[str] = []
    for number in range(500):
        queue.put(f"task{number % 7}", number)
        if chance.random() < 0.3:
            queue.discard(f"task{number % 7}", number)
        if (taken := queue.take()) is not None:
            running.append(taken[0])
        if running and chance.random() < 0.9:
            queue.done(running.pop())
    while running or queue.waiting:
        if (taken := queue.take()) is not None:
            running.append(taken[0])
        if running:
            queue.done(running.pop())
    assert (queue.waiting, queue.running, queue._waiting, queue._running) == (0, 0, {}, {})
