"""The limit on rollouts' blocks: one cut, then nothing until a task's next step."""

from itertools import pairwise

from rollout_svc.coserving.pressure import FROZEN_S, Cut, cut


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
