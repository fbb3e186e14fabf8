"""The simulator of shared accelerators: it asks the decisions themselves, a case computed by hand, and cuts of `python -m bench.plex`."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.plex.__main__ import replay
from bench.plex.cells import measure, summary
from bench.plex.histories import play, random_history, shares, violations
from bench.plex.tasks import simulate
from bench.plex.workloads import Cell, cell_rules, cell_trace
from common.accelerators import Function, Policy, Tier
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Executor, Task, Trace
from common.leases import history
from scheduler_svc.accelerators.decisions import slicing
from scheduler_svc.accelerators.decisions.state import MemoryBudget, Rules

MOVES = {(Tier.HOST, Tier.DEVICE): (1.0,), (Tier.DEVICE, Tier.HOST): (0.5,)}
TRAIN, GENERATE = Function.TRAIN, Function.GENERATE
CELL = Cell(pools=3, tasks=4, idle=0.7, switch=1.0)


def executor(pool: str, function: Function = TRAIN, **changes: object) -> Executor:
    return replace(Executor(pool, pool, (function,), 100, 100, Tier.HOST, moves=MOVES), **changes)  # type: ignore[arg-type]


def task(name: str, pool: str, *phases: tuple[str, float]) -> Task:
    return Task(name, f"tenant of {name}", pool, 0.0, (phases,))


def fcfs() -> Rules:
    return Rules(MemoryBudget(100, 1000), policy=Policy.FCFS)


def test_run_takes_as_long_as_computed_by_hand() -> None:
    """A wakes at 1 and trains until 4; the switch to B takes 1.5, and B trains from 5.5 to 7.5; A's work is back at 8 and ends at 12.5."""
    trace = Trace(
        (executor("a"), executor("b")),
        (task("A", "a", (TRAIN, 3.0), (ENVIRONMENT, 4.0), (TRAIN, 3.0)), task("B", "b", (TRAIN, 2.0))),
    )
    run = simulate(trace, fcfs(), 0)
    assert run.makespan_s == pytest.approx(12.5)
    counts, accounts = run.accelerator.counts, run.accelerator.accounts
    assert (counts.busy_s, counts.switch_s) == (pytest.approx(8.0), pytest.approx(4.0))
    assert accounts.booked_ms == {"A": 8500, "B": 4000}
    assert accounts.slices_ms == 12500
    assert counts.operation_waits_s == pytest.approx([1.0, 5.5, 1.5])


def test_nothing_comes_between_what_a_step_scores_and_what_it_trains() -> None:
    """As by hand above, with a second of each training scored; B, which is ready from the first, waits for both."""
    score = (Function.SCORE, 1.0)
    tasks = (task("A", "a", score, (TRAIN, 2.0), (ENVIRONMENT, 4.0), score, (TRAIN, 2.0)), task("B", "b", score, (TRAIN, 1.0)))
    run = simulate(Trace((executor("a"), executor("b")), tasks), replace(fcfs(), max_wait_s=0.0), 0)
    assert run.makespan_s == pytest.approx(12.5)
    assert run.accelerator.accounts.booked_ms == {"A": 8500, "B": 4000}


def test_operations_of_a_sampler_share_its_speed() -> None:
    """Two at once are done 1.6 times as fast as one after another: 2 × 4 s in 5 s, after the wake of 1 s."""
    sampler = executor("a", GENERATE, places=2, gain=(1.0, 1.6))
    run = simulate(Trace((sampler,), (task("A", "a", (GENERATE, 4.0)), task("B", "a", (GENERATE, 4.0)))), fcfs(), 0)
    assert run.makespan_s == pytest.approx(6.0)


def test_frozen_requests_continue_and_repeat_a_share_of_their_work() -> None:
    """B is overdue at 2, and A may drain for 1.1 s, what a freeze costs by then.

    A has run for 2.1 s of 30 when it is frozen at 3.1. B trains from 4.6 to 6.6, and A continues at 8.1 with 27.9 s and 0.21 s repeated.
    """
    sampler = executor("a", GENERATE)
    rules = Rules(MemoryBudget(100, 1000), max_wait_s=2.0, drain=1.0)
    run = simulate(Trace((sampler, executor("b")), (task("A", "a", (GENERATE, 30.0)), task("B", "b", (TRAIN, 2.0)))), rules, 0)
    assert run.accelerator.counts.frozen == 1
    assert run.makespan_s == pytest.approx(36.21)


def test_trajectories_of_a_step_go_on_at_once_and_training_follows_the_last(tmp_path: Path) -> None:
    """Awake at 1; both generate until 2 and 3; the first is back at 7 until 8, the second at 4 until 5; training ends at 10."""
    whole = ((GENERATE, 1.0), (ENVIRONMENT, 5.0), (GENERATE, 1.0)), ((GENERATE, 1.0), (ENVIRONMENT, 1.0), (GENERATE, 1.0))
    trace = Trace((executor("a", GENERATE, functions=(GENERATE, TRAIN)),), (replace(task("A", "a", (TRAIN, 2.0)), members=(whole,)),))
    run = simulate(trace, fcfs(), 0)
    assert run.makespan_s == pytest.approx(10.0)
    assert (trace.tasks[0].busy_s, trace.tasks[0].away_s) == (6.0, 5.0)
    traces.write(tmp_path / "trace.jsonl", trace)
    assert traces.read(tmp_path / "trace.jsonl") == trace


def test_mutated_decision_changes_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, rules = cell_trace(CELL, 4, 0), cell_rules()
    before = simulate(trace, rules, 0).makespan_s
    original = slicing.next_slice
    monkeypatch.setattr(slicing, "next_slice", lambda now_s, holding, demands, moves, *_: original(now_s, holding, demands, moves, fcfs()))
    assert simulate(trace, rules, 0).makespan_s != before


def test_mutated_measure_of_an_executor_changes_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator has the services' own meters and the tally of their reports."""
    trace, rules = cell_trace(CELL, 4, 0), cell_rules()
    before = simulate(trace, rules, 0).makespan_s
    monkeypatch.setattr(history.Tally, "look", lambda _: None)
    assert simulate(trace, rules, 0).makespan_s != before


def test_equal_runs_are_equal() -> None:
    first, second = (simulate(cell_trace(CELL, 4, 0), cell_rules(), 0) for _ in range(2))
    assert first.makespan_s == second.makespan_s
    assert first.accelerator.counts == second.accelerator.counts


def test_state_that_never_fits_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="tasks A never end: check the budget of 99 bytes"):
        simulate(Trace((executor("a"),), (task("A", "a", (TRAIN, 1.0)),)), Rules(MemoryBudget(99, 1000)), 0)


# ------------------------------------------------------------------------------------------------------------ traces


def test_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    trace = cell_trace(CELL, 3, 0)
    traces.write(tmp_path / "trace.jsonl", trace)
    assert traces.read(tmp_path / "trace.jsonl") == replace(
        trace,
        executors=tuple(sorted(trace.executors, key=lambda one: one.executor)),
        tasks=tuple(sorted(trace.tasks, key=lambda one: one.task)),
    )
    found = replay(tmp_path / "trace.jsonl", None, 10_000, 60.0)
    assert set(found["policies"]) == set(Policy)


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "lease"}',
        '{"kind": "move", "executor": "a", "from": "moon", "to": "host", "seconds": 1}',
        '{"kind": "step", "task": "a", "phases": [["sleep", 1]]}',
        "[]",
        "{",
    ],
)
def test_wrong_line_of_a_trace_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "trace.jsonl").write_text("\n" + line + "\n")
    with pytest.raises(ValueError, match=r"trace\.jsonl, line 2"):
        traces.read(tmp_path / "trace.jsonl")


# --------------------------------------------------------------------------------------------------------- histories


def test_random_histories_keep_their_bounds() -> None:
    """A cut of the 10,000 of `python -m bench.plex histories`."""
    assert [found for seed in range(60) for found in play(seed)[0]] == []


def test_histories_without_the_rule_of_the_maximum_wait_are_found() -> None:
    found = [violations(one, simulate(one.trace, replace(one.rules, max_wait_s=1e9), one.seed)) for one in map(random_history, range(40))]
    assert any("waited for" in sentence for sentences in found for sentence in sentences)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_accelerator_time_follows_the_weights(weights: tuple[float, ...]) -> None:
    assert shares(weights, 1500.0)["error"] <= 0.1


def test_switches_take_no_more_than_residency_leaves_while_all_have_work() -> None:
    cell = Cell(pools=3, tasks=6, idle=0.0, switch=1.0)
    rules = replace(cell_rules(), max_wait_s=1e9)
    run = simulate(cell_trace(cell, 400, 0), rules, 0, until_s=600.0)
    assert run.accelerator.counts.moving_switches > 10
    assert run.accelerator.counts.switch_s / run.makespan_s <= 1 / (1 + rules.residency)


# ------------------------------------------------------------------------------------------------------------- cells


def test_ratio_saves_more_than_fcfs_where_switches_are_dear_and_waits_are_bounded() -> None:
    row = measure(CELL, [0], 8)
    found = summary([row])
    assert found["dear_points_over_fcfs"] >= 5
    assert found["beyond_bound_s"] <= 0
