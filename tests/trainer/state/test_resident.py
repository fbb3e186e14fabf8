"""The LRU cache of states: eviction by number and by size."""

from tests.trainer.steps import DIFFERENT, begin
from trainer_svc.model.policy import Policy
from trainer_svc.state.resident import Residents


def test_least_recently_trained_task_gives_way(policy: Policy) -> None:
    residents = Residents(limit=2)
    kept = {name: begin(policy, spec) for name, spec in DIFFERENT.items()}
    residents.keep(kept["a"], "a1")
    residents.keep(kept["b"], "b1")
    assert residents.get("a", "a1") is kept["a"]
    residents.keep(kept["c"], "c1")
    assert residents.get("b", "b1") is None
    assert residents.get("a", "a1") is kept["a"]
    assert residents.get("a", "a2") is None
    residents.forget("a")
    assert residents.get("a", "a1") is None
    assert len(residents) == 1


def test_large_states_give_way_before_there_are_too_many(policy: Policy) -> None:
    small, large, other = (begin(policy, DIFFERENT[name]) for name in "bca")
    assert small.size_bytes == 12 * small.optimizer.params.numel()
    residents = Residents(limit=8, limit_bytes=large.size_bytes + small.size_bytes)
    for resident in (small, large):
        residents.keep(resident, "1")
    assert (len(residents), residents.size_bytes) == (2, large.size_bytes + small.size_bytes)
    residents.keep(other, "1")
    assert residents.get("b", "1") is None
    assert residents.size_bytes <= large.size_bytes + small.size_bytes
    nothing_fits = Residents(limit=8, limit_bytes=1)
    nothing_fits.keep(small, "1")
    assert len(nothing_fits) == 0
