"""Order of a fair queue: tenant first, then task, weighted."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from common.fairness.fair_queue import Claimant, FairQueue
from common.fairness.fair_slots import FairSlots

WEIGHTS = st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 7.0, 40.0]), min_size=2, max_size=9)
PLENTY = 10**6
"""Items in service at once that no test reaches."""


def claimants(weights: Iterable[float], tasks: int = 1) -> list[Claimant]:
    return [Claimant(f"tenant{number}", f"t{task}", weight) for number, weight in enumerate(weights) for task in range(tasks)]


def served(queue: FairQueue[int]) -> Claimant:
    """The claimant of the next item, which needs one unit of service."""
    taken = queue.take()
    assert taken is not None
    queue.done(taken[0], 1.0)
    return taken[0]


@given(WEIGHTS, st.integers(1, 200))
def test_each_backlogged_tenant_gets_its_weighted_share_within_one_item(weights: list[float], items: int) -> None:
    queue: FairQueue[int] = FairQueue(PLENTY)
    for claimant in claimants(weights):
        for number in range(items + 1):
            queue.put(claimant, number)
    counts: Counter[str] = Counter()
    whole = sum(map(Fraction, weights))
    for total in range(1, items + 1):
        counts[served(queue).tenant] += 1
        for number, weight in enumerate(weights):
            assert abs(counts[f"tenant{number}"] - total * Fraction(weight) / whole) <= 1


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(1, 120))
def test_the_number_of_a_tenants_tasks_does_not_count_and_its_tasks_share_equally(tasks: list[int], items: int) -> None:
    queue: FairQueue[int] = FairQueue(PLENTY)
    for number, count in enumerate(tasks):
        for task in range(count):
            for item in range(items + 1):
                queue.put(Claimant(f"tenant{number}", f"t{task}"), item)
    counts: Counter[tuple[str, str]] = Counter()
    for _ in range(items):
        claimant = served(queue)
        counts[claimant.tenant, claimant.task] += 1
    for number, count in enumerate(tasks):
        own = [counts[f"tenant{number}", f"t{task}"] for task in range(count)]
        assert abs(sum(own) - items / len(tasks)) <= 1
        assert max(own) - min(own) <= 1


@given(st.lists(st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.floats(0.01, 5.0)), min_size=2, max_size=6), st.integers(0, 2**32))
def test_service_that_is_known_afterwards_only_is_shared_by_weight(tenants: list[tuple[float, float]], seed: int) -> None:
    """Items need up to twice a tenant's usual service, and four of them are in service at once."""
    queue: FairQueue[int] = FairQueue(PLENTY)
    chance = random.Random(seed)
    usual = {f"tenant{number}": service for number, (_, service) in enumerate(tenants)}
    of_tenant = {claimant.tenant: claimant for claimant in claimants(weight for weight, _ in tenants)}
    for claimant in of_tenant.values():
        for item in range(3):
            queue.put(claimant, item)
    received: Counter[str] = Counter()
    in_service: list[Claimant] = []
    for item in range(600):
        taken = queue.take()
        assert taken is not None
        in_service.append(taken[0])
        queue.put(of_tenant[taken[0].tenant], item)
        if len(in_service) == 4:
            done = in_service.pop(chance.randrange(4))
            needed = usual[done.tenant] * chance.uniform(0.0, 2.0)
            queue.done(done, needed)
            received[done.tenant] += needed  # pyright: ignore[reportArgumentType]
    unit = 2 * max(usual.values())
    per_weight = [received[tenant] / claimant.weight for tenant, claimant in of_tenant.items()]
    slack = max(4 * unit / claimant.weight for claimant in of_tenant.values()) + 4 * unit
    assert max(per_weight) - min(per_weight) <= slack


@given(WEIGHTS, st.integers(0, 100), st.integers(1, 100))
def test_a_newcomer_has_neither_debt_nor_credit(weights: list[float], before: int, after: int) -> None:
    queue: FairQueue[int] = FairQueue(PLENTY)
    *present, newcomer = claimants(weights)
    for claimant in present:
        for item in range(before + after + 1):
            queue.put(claimant, item)
    for _ in range(before):
        served(queue)
    for item in range(after + 1):
        queue.put(newcomer, item)
    got = sum(served(queue).tenant == newcomer.tenant for _ in range(after))
    assert abs(got - after * newcomer.weight / sum(weights)) <= 1


def test_nine_tasks_get_no_more_than_one() -> None:
    queue: FairQueue[int] = FairQueue(max_per_task=3)
    many = [Claimant("many", f"t{number}") for number in range(9)]
    for item in range(40):
        for claimant in [*many, Claimant("one", "t")]:
            queue.put(claimant, item)
    counts = Counter(served(queue).tenant for _ in range(80))
    assert counts == {"many": 40, "one": 40}


def test_a_tenant_that_waits_for_each_answer_gets_its_weight_and_not_more() -> None:
    """It returns after each item: its debt is remembered, or it would be served every second time."""
    queue: FairQueue[int] = FairQueue(PLENTY)
    light, heavy = Claimant("light", "t", 1.0), Claimant("heavy", "t", 3.0)
    for item in range(1000):
        queue.put(heavy, item)
    queue.put(light, 0)
    counts: Counter[str] = Counter()
    for item in range(400):
        claimant = served(queue)
        counts[claimant.tenant] += 1
        if claimant.tenant == "light":
            queue.put(light, item)
    assert 90 <= counts["light"] <= 101


@given(st.sampled_from([1.0, 3.0]), st.integers(0, 2**32))
def test_a_tenant_whose_next_item_comes_while_anothers_is_served_gets_its_share(weight: float, seed: int) -> None:
    """As a task whose next step follows from its last, at a trainer that meanwhile takes another's."""
    queue: FairQueue[int] = FairQueue(PLENTY)
    chance = random.Random(seed)
    one, many = Claimant("one", "t", 1.0), Claimant("many", "t", weight)
    for item in range(400):
        queue.put(many, item)
    queue.put(one, 0)
    counts: Counter[str] = Counter()
    returns = False
    for item in range(400):
        taken = queue.take()
        assert taken is not None
        if returns:
            queue.put(one, item)
        returns = taken[0] == one
        counts[taken[0].tenant] += 1
        queue.done(taken[0], chance.uniform(0.99, 1.01))
    assert abs(counts["one"] - 400 / (1 + weight)) <= 5


def test_a_task_never_holds_all_slots() -> None:
    queue: FairQueue[int] = FairQueue(max_per_task=2)
    greedy, other = Claimant("a", "greedy"), Claimant("a", "other")
    for item in range(5):
        queue.put(greedy, item)
    assert [queue.take(), queue.take(), queue.take()] == [(greedy, 0), (greedy, 1), None]
    queue.put(other, 9)
    assert queue.take() == (other, 9)


def test_a_new_weight_counts_from_the_next_choice() -> None:
    queue: FairQueue[int] = FairQueue(PLENTY)
    for item in range(200):
        for claimant in claimants([1.0, 1.0]):
            queue.put(claimant, item)
    assert Counter(served(queue).tenant for _ in range(40)) == {"tenant0": 20, "tenant1": 20}
    queue.put(Claimant("tenant1", "t0", 3.0), 0)
    assert Counter(served(queue).tenant for _ in range(40)) == {"tenant0": 10, "tenant1": 30}


def test_nothing_is_remembered_of_tasks_that_are_gone() -> None:
    queue: FairQueue[int] = FairQueue(max_per_task=1)
    chance = random.Random(0)
    running: list[Claimant] = []
    for number in range(500):
        claimant = Claimant(f"tenant{number % 3}", f"task{number % 7}", 1.0 + number % 2)
        queue.put(claimant, number)
        if chance.random() < 0.3:
            queue.discard(claimant, number)
        if (taken := queue.take()) is not None:
            running.append(taken[0])
        if running and chance.random() < 0.9:
            queue.done(running.pop(), chance.random())
    while running or queue.waiting:
        if (taken := queue.take()) is not None:
            running.append(taken[0])
        if running:
            queue.done(running.pop(), chance.random())
    assert (queue.waiting, queue.running, queue._tenants, len(queue._shares)) == (0, 0, {}, 0)


def test_idle_tenants_are_forgotten_once_their_debt_is_made_up() -> None:
    queue: FairQueue[int] = FairQueue(PLENTY)
    for item in range(300):
        queue.put(Claimant("busy", "t"), item)
    for number in range(100):
        queue.put(Claimant(f"passing{number}", "t"), number)
    for _ in range(250):
        served(queue)
    assert len(queue._shares) <= 2


async def test_a_cancelled_wait_takes_no_slot() -> None:
    slots = FairSlots(1)
    holder, second = Claimant("a", "t"), Claimant("b", "t")
    await slots.acquire(holder)
    waits = [asyncio.ensure_future(slots.acquire(second)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    slots.release(holder, 0.1)
    await waits[1]
    assert waits[0].cancelled() and slots.waiting == 0
    slots.release(second, 0.1)
