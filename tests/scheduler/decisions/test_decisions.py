"""The scheduler's pure decisions: pace, fairness, capacity, batching."""

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from common.spec import TaskSpec
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load, TaskShare, TenantShare
from scheduler_svc.training.decisions.admission import (
    AdmissionDecision,
    allowance,
    groups_to_admit,
    next_task,
    pools_with_room,
    starting_virtual_time,
)
from scheduler_svc.training.decisions.batching import LiveGroup, groups_for_step, stale_groups
from scheduler_svc.training.decisions.retention import RetentionWindow
from tests.support.scheduler.stages import spec as task

PLENTY = {"tiny": Capacity(sequences=10**9, kv_tokens=10**12)}


def share(task: str, tenant: str = "acme", **changes: object) -> TaskShare:
    values: dict[str, object] = {
        "task": task,
        "tenant": tenant,
        "pool": "tiny",
        "priority": 0,
        "virtual_time": 0.0,
        "allowance": 100,
        "group_size": 8,
        "group_tokens": 100.0,
        "reserved_tokens": 800.0,
    }
    return TaskShare(**(values | changes))  # type: ignore[arg-type]


def tenants(**weights: float) -> dict[str, TenantShare]:
    return {name: TenantShare(name, weight, 0.0) for name, weight in weights.items()}


def admitted(tasks: list[TaskShare], shares: dict[str, TenantShare], capacity: Capacity) -> list[str]:
    return [admission.task for admission in groups_to_admit(tasks, shares, {"tiny": capacity}, {}, limit=10**6).groups]


# ---------------------------------------------------------------------------------------------------------------- pace


def test_pace_allows_one_step_per_version_and_staleness() -> None:
    def allowed(version: int, max_staleness: int, admitted: int, voided: int = 0) -> int:
        return allowance(version=version, max_staleness=max_staleness, steps=5, groups_per_step=4, admitted=admitted, voided=voided)

    assert allowed(0, 0, 0) == 4
    assert allowed(0, 1, 0) == 8
    assert allowed(0, 1, 8) == 0
    assert allowed(1, 1, 8) == 4
    assert allowed(0, 1, 8, voided=3) == 3
    assert allowed(4, 1, 18) == 2  # the groups of all steps
    assert allowed(4, 1, 20) == 0


# ------------------------------------------------------------------------------------------------------------ fairness


def test_tenants_share_equally_however_many_tasks_they_have() -> None:
    tasks = [share("lone", "small"), *(share(f"t{number}", "big") for number in range(9))]
    got = admitted(tasks, tenants(small=1, big=1), Capacity(8 * 20, 10**9))
    assert len(got) == 20
    assert got.count("lone") == 10


def test_weight_buys_a_proportional_share() -> None:
    got = admitted([share("a", "one"), share("b", "three")], tenants(one=1, three=3), Capacity(8 * 40, 10**9))
    assert got.count("b") == 30


def test_tokens_count_not_groups() -> None:
    tasks = [share("short", "x", group_tokens=50.0), share("long", "y", group_tokens=150.0)]
    got = admitted(tasks, tenants(x=1, y=1), Capacity(8 * 40, 10**9))
    assert got.count("short") == 30


def test_priority_orders_a_tenants_own_tasks_only() -> None:
    tasks = [share("urgent", "acme", priority=5, allowance=3), share("plain", "acme"), share("other", "rival")]
    got = admitted(tasks, tenants(acme=1, rival=1), Capacity(8 * 12, 10**9))
    assert got.count("other") == 6
    assert [task for task in got if task != "other"] == ["urgent"] * 3 + ["plain"] * 3


def test_newcomer_waits_for_at_most_one_group_of_a_tenant_with_a_long_queue() -> None:
    shares = tenants(old=1, new=1)
    shares["old"].virtual_time = 5_000_000.0
    shares["new"].virtual_time = starting_virtual_time(0.0, [5_000_000.0])
    tasks = [share(f"queued{number}", "old", allowance=10_000) for number in range(100)] + [share("fresh", "new")]
    assert "fresh" in admitted(tasks, shares, Capacity(8 * 2, 10**9))


def test_newcomer_has_no_credit_from_the_past_of_others() -> None:
    assert starting_virtual_time(0.0, [900.0, 400.0]) == 400.0
    assert starting_virtual_time(700.0, [900.0, 400.0]) == 700.0
    assert starting_virtual_time(0.0, []) == 0.0
    assert starting_virtual_time(0.0, [], 900.0) == 900.0  # no tenant is active: a returning one has no debt
    assert starting_virtual_time(0.0, [400.0], 900.0) == 400.0


def test_no_task_is_next_without_allowance() -> None:
    assert next_task([share("a", allowance=0)], tenants(acme=1), {}) is None


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 20), st.floats(500, 1000)), min_size=1, max_size=12))
def test_shares_of_backlogged_tenants_differ_by_one_group_at_most(described: list[tuple[str, int, float]]) -> None:
    """Group tokens are so close that minimum shares do not decide."""
    tasks = [share(f"t{i}", tenant, allowance=10**6, group_tokens=tokens) for i, (tenant, _, tokens) in enumerate(described)]
    shares = tenants(**{tenant: 1.0 for tenant, _, _ in described})
    for admission in groups_to_admit(tasks, shares, {"tiny": Capacity(8 * 300, 10**12)}, {}, limit=10**6).groups:
        shares[described[int(admission.task[1:])][0]].charge(admission.charged_tokens)
    times = [each.virtual_time for each in shares.values()]
    assert max(times) - min(times) <= max(tokens for _, _, tokens in described) + 1e-6


# ------------------------------------------------------------------------------------------------------------ capacity


def test_admission_stops_at_capacity_and_lets_no_small_group_overtake() -> None:
    big = share("big", "a", group_size=64, reserved_tokens=6400.0)
    small = share("small", "b", virtual_time=0.0)
    shares = tenants(a=1, b=1)
    shares["b"].virtual_time = 1.0
    in_flight = {"tiny": InFlight(Load(10, 100.0))}
    assert groups_to_admit([big, small], shares, {"tiny": Capacity(60, 10**9)}, in_flight, limit=9) == AdmissionDecision([], {"tiny"})


def test_one_group_is_always_admitted_when_nothing_is_in_flight() -> None:
    assert admitted([share("huge", group_size=500)], tenants(acme=1), Capacity(8, 10**9)) == ["huge"]


def test_kv_cache_tokens_bound_admission_too() -> None:
    assert len(admitted([share("a")], tenants(acme=1), Capacity(10**6, 2500))) == 3


def test_full_pool_does_not_hold_up_another() -> None:
    tasks = [share("a", "x"), share("b", "y", pool="other")]
    capacities = {"tiny": Capacity(8, 10**9), "other": Capacity(8, 10**9)}
    in_flight = {"tiny": InFlight(Load(8, 1.0))}
    assert [each.task for each in groups_to_admit(tasks, tenants(x=1, y=1), capacities, in_flight, limit=9).groups] == ["b"]


def test_pool_without_replicas_admits_nothing() -> None:
    assert groups_to_admit([share("a")], tenants(acme=1), {}, {}, limit=9) == AdmissionDecision([], set())
    assert pools_with_room({"tiny": Capacity(0, 0)}, {}) == set()


def test_pools_with_room_are_those_that_might_take_a_group() -> None:
    capacities = {"full": Capacity(8, 100), "idle": Capacity(0.5, 100), "tiny": Capacity(8, 100)}
    in_flight = {"full": InFlight(Load(8)), "tiny": InFlight(Load(7))}
    assert pools_with_room(capacities, in_flight) == {"idle", "tiny"}


def test_admission_is_limited_to_the_requested_number() -> None:
    tasks = [share("a"), share("b", virtual_time=150.0)]
    shares = tenants(acme=1)
    assert [each.task for each in groups_to_admit(tasks, shares, dict(PLENTY), {}, limit=3).groups] == ["a", "a", "b"]


# ------------------------------------------------------------------------------------------------------------ batching


def live(*described: tuple[int, int, bool]) -> list[LiveGroup]:
    return [LiveGroup(number, version, ready) for number, version, ready in described]


def test_step_takes_the_oldest_ready_groups() -> None:
    groups = live((5, 1, True), (3, 0, True), (4, 1, True))
    assert groups_for_step(groups, version=1, max_staleness=1, groups_per_step=2) == [3, 4]


def test_step_waits_for_enough_groups() -> None:
    assert groups_for_step(live((0, 0, True)), version=0, max_staleness=1, groups_per_step=2) is None


def test_step_waits_for_a_straggler_that_would_be_stale_after_it() -> None:
    groups = live((0, 0, False), (1, 1, True), (2, 1, True))
    assert groups_for_step(groups, version=1, max_staleness=1, groups_per_step=2) is None
    assert groups_for_step(groups, version=1, max_staleness=2, groups_per_step=2) == [1, 2]


def test_step_waits_early_enough_that_later_steps_can_take_all_stragglers() -> None:
    groups = live((0, 0, False), (1, 0, False), (3, 1, True))
    assert groups_for_step(groups, version=1, max_staleness=2, groups_per_step=1) is None


def test_stale_groups_are_those_beyond_the_bound() -> None:
    assert stale_groups(live((0, 0, True), (1, 1, False), (2, 2, True)), version=2, max_staleness=1) == [0]


@dataclass
class Model:
    """State of a task in the scheduler's rules."""

    max_staleness: int
    groups_per_step: int
    version: int = 0
    admitted: int = 0
    voided: int = 0
    groups: dict[int, LiveGroup] = field(default_factory=dict)


class PaceAndBatching(RuleBasedStateMachine):
    """In every order in which groups become ready or void, no group turns stale and no task stalls."""

    numbers = Bundle("numbers")
    model: Model

    @initialize(max_staleness=st.integers(0, 4), groups_per_step=st.integers(1, 4))
    def start(self, max_staleness: int, groups_per_step: int) -> None:
        self.model = Model(max_staleness, groups_per_step)

    @precondition(lambda self: self._allowed() > 0)
    @rule(target=numbers)
    def admit(self) -> int:
        number = self.model.admitted
        self.model.admitted += 1
        self.model.groups[number] = LiveGroup(number, self.model.version, ready=False)
        return number

    @rule(number=consumes(numbers), void=st.booleans())
    def end(self, number: int, void: bool) -> None:
        if void:
            del self.model.groups[number]
            self.model.voided += 1
        else:
            self.model.groups[number] = LiveGroup(number, self.model.groups[number].version, ready=True)

    @rule()
    def step(self) -> None:
        model = self.model
        chosen = self._chosen()
        if chosen is not None:
            assert all(0 <= model.version - model.groups[number].version <= model.max_staleness for number in chosen)
            for number in chosen:
                del model.groups[number]
            model.version += 1

    @invariant()
    def nothing_turns_stale(self) -> None:
        groups = list(self.model.groups.values())
        assert stale_groups(groups, version=self.model.version, max_staleness=self.model.max_staleness) == []

    @invariant()
    def work_that_is_all_ready_makes_a_step(self) -> None:
        if self._allowed() == 0 and all(group.ready for group in self.model.groups.values()):
            assert self._chosen() is not None

    def _allowed(self) -> int:
        model = self.model
        return allowance(
            version=model.version,
            max_staleness=model.max_staleness,
            steps=10**6,
            groups_per_step=model.groups_per_step,
            admitted=model.admitted,
            voided=model.voided,
        )

    def _chosen(self) -> list[int] | None:
        return groups_for_step(
            list(self.model.groups.values()),
            version=self.model.version,
            max_staleness=self.model.max_staleness,
            groups_per_step=self.model.groups_per_step,
        )


PaceAndBatching.TestCase.settings = settings(max_examples=200, stateful_step_count=60)
TestPaceAndBatching = PaceAndBatching.TestCase


# ----------------------------------------------------------------------------------------------------------- retention


@given(
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from([{"adapters": "all"}, {}, {"adapters_every": 3}]),
    st.integers(0, 6),
    st.integers(0, 3),
    st.integers(1, 40),
    st.integers(1, 5),
)
def test_blobs_that_are_not_kept_were_superseded_by_this_step_or_earlier(
    checkpoints: int, every: int, adapters: dict[str, Any], batches: int, staleness: int, steps: int, whole: int
) -> None:
    """Deleting after each step only what it supersedes leaves no other blob, and keeps the latest with its predecessors."""
    keep = {"checkpoints": checkpoints, "every": every, "batches": batches, **adapters}
    spec = TaskSpec.model_validate(task(steps=40, keep=keep, algorithm={"max_staleness": staleness}))
    kinds = ("adapter", "checkpoint", "batch")
    stored: set[tuple[str, int]] = set()
    since: dict[int, int] = {}
    state_at = 0
    for at in range(1, steps + 1):
        if at - state_at >= whole or (every and at % every == 0):
            state_at = at
        else:
            since[at] = state_at
        stored |= {(kind, at) for kind in kinds}
        kept = RetentionWindow(spec, at)
        passed = set(kept.superseded_blobs())
        known = {version: first for version, first in since.items() if version in passed | kept.deciding}  # only these are read
        kept, passed = kept.with_lineages(known), kept.with_recomputed(passed, known)
        wanted = {"adapter": kept.has_adapter, "checkpoint": kept.has_checkpoint, "batch": kept.has_batch}
        stored -= {(kind, version) for version in passed for kind in kinds if not wanted[kind](version)}
        kept = kept.with_lineages(since)
        wanted = {"adapter": kept.has_adapter, "checkpoint": kept.has_checkpoint, "batch": kept.has_batch}
        assert stored == {(kind, version) for kind in kinds for version in range(1, at + 1) if wanted[kind](version)}
        assert ("adapter", at) in stored
        assert ("checkpoint", at) in stored
        for version in since.keys() & {version for kind, version in stored if kind == "checkpoint"}:
            assert stored >= {("batch", step) for step in range(since[version] + 1, version + 1)}
            assert stored >= {("checkpoint", step) for step in range(max(1, since[version]), version)}
    adapters_kept = {version for kind, version in stored if kind == "adapter"}
    assert adapters == {} or adapters_kept >= set(range(3, steps + 1, 3))
    assert adapters != {} or len(adapters_kept) <= max(checkpoints, staleness + 2) + (steps // every if every else 0)
