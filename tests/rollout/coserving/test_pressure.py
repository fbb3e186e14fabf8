"""What rollouts will need, and the limit on their blocks: one cut, then nothing until a task's next step."""

from itertools import pairwise
from random import Random

from rollout_svc.coserving.pressure import FROZEN_S, LENGTHS, Cut, Lengths, Peak, cut, growth


def test_growth_is_the_most_that_requests_have_at_one_time() -> None:
    random = Random(0)
    assert growth([]) == 0
    for _ in range(500):
        requests = [(random.randrange(30), random.randrange(60)) for _ in range(random.randint(1, 8))]
        brute = [
            sum(step if step <= left else -held for left, held in requests)  # a request gives its tokens back after its last one
            for step in range(31)
        ]
        assert growth(requests) == max(0, *brute), requests


def test_tokens_left_are_the_median_of_requests_that_got_further() -> None:
    lengths = Lengths()
    assert lengths.left(3, 10) == 0, "nothing is known"
    for tokens in range(1, 11):
        lengths.add(10 * tokens)
    assert lengths.left(0, 1_000) == 60
    assert lengths.left(60, 1_000) == 90 - 60
    assert lengths.left(60, 80) == 80 - 60, "no request gets further than it may"
    assert lengths.left(100, 1_000) == 100, "further than any other"
    assert lengths.left(100, 130) == 130 - 100
    for _ in range(LENGTHS):
        lengths.add(7)
    assert lengths.left(0, 1_000) == 7, "the latest count"


def test_peak_is_the_highest_value_of_as_long_as_a_cut_holds() -> None:
    random, peak, values, now_s = Random(0), Peak(), list[tuple[float, int]](), 1e6
    for _ in range(1_000):
        now_s += random.expovariate(6 / FROZEN_S)
        values.append((now_s, random.randrange(100)))
        assert peak.of(values[-1][1], now_s) == max(value for at_s, value in values if at_s > now_s - FROZEN_S)


def test_cut_leaves_half_or_less_if_more_is_short() -> None:
    assert cut(None, 100, 1, 7, 5.0) == Cut(50, 7, 5.0)
    assert cut(None, 100, 80, 7, 5.0) == Cut(20, 7, 5.0)
    assert cut(None, 10, 80, 7, 5.0) == Cut(0, 7, 5.0)
    assert cut(None, 100, 0, 7, 5.0) is None


def test_cut_ends_with_a_newer_adapter_or_after_a_while() -> None:
    made = Cut(50, 7, 5.0)
    assert cut(made, 60, 0, 7, 5.1) is made
    assert cut(made, 60, 0, 8, 5.1) is None
    assert cut(made, 60, 0, 7, 5.0 + FROZEN_S) is None


def test_waves_of_served_requests_make_one_cut_between_two_adapters() -> None:
    """Served requests come and go each second; rollouts grow as far as they may. Without the freeze, each wave would find them grown."""
    capacity, step_s = 1_000, 0.01
    limit: Cut | None = None
    held, cuts = 900, list[float]()
    for step in range(30_000):
        now_s = step * step_s
        serving = 300 if step // 100 % 2 else 100
        before, newest = limit, step // 3_000  # a new adapter each 30 s
        limit = cut(before, held, held + serving - capacity, newest, now_s)
        if limit is not None and limit is not before:
            cuts.append(now_s)
            held = limit.blocks
        elif limit is None or held < limit.blocks:
            held = min(held + 1, capacity - 100, limit.blocks if limit else capacity)
    assert 5 <= len(cuts) <= 10
    assert min(later - earlier for earlier, later in pairwise(cuts)) > 20
