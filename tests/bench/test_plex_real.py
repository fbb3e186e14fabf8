"""Figures of real runs on a shared accelerator, and what the simulator is given of them, without a stack."""

import json
from dataclasses import asdict, replace

import pytest

from bench.charts import plex_tables
from bench.harness.services import BenchError
from bench.plex.real import arms, figures, kept, predict
from bench.plex.real.calibration import fitted
from bench.plex.real.slices import Reports, described, waits_s
from bench.plex.real.workloads import PAIR, PoolLoad
from common.accelerators import ExecutorState, Function, Tier
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Executor, Task, Trace
from common.messages import ExecutorReport, ShareOf, SliceOf

MOVES = {(Tier.DEVICE, Tier.HOST): (0.1,), (Tier.HOST, Tier.DEVICE): (0.1,), (Tier.DEVICE, Tier.DEVICE): (0.02,)}


def slice_of(epoch: int, executor: str, ordered_s: float, parts_ms: tuple[int, int, int], booked_ms: int | None = None) -> SliceOf:
    held_ms = sum(parts_ms)
    switch, busy, idle = parts_ms
    return SliceOf(
        number=epoch, accelerator="core", epoch=epoch, executor=executor, pool="a", function=Function.GENERATE, reason="ratio",
        from_tier=Tier.HOST, to_tier=Tier.HOST, ordered_s=ordered_s, awake_s=ordered_s + switch / 1000, asked_s=None,
        ended_s=ordered_s + held_ms / 1000, ended="switched", expected_s=0.1, switch_ms=switch, busy_ms=busy, idle_ms=idle,
        shares=[ShareOf(task="t", ms=held_ms if booked_ms is None else booked_ms)],
    )  # fmt: skip


def reports(executor: str, *ready: tuple[float, float | None]) -> Reports:
    """`ready`: times of reports, and since when there was work by then."""
    given = {
        "accelerator": "core",
        "executor": executor,
        "pool": "a",
        "replica": "r",
        "epoch": 1,
        "device_bytes": 1,
        "host_bytes": 1,
        "budget_bytes": 2,
    }
    state = {"state": ExecutorState.PARKED, "tier": Tier.HOST}
    return Reports({executor: [ExecutorReport(**given, **state, at_s=at_s, ready_since_s=since_s) for at_s, since_s in ready]})  # type: ignore[arg-type]


def test_wait_begins_when_work_is_ready_and_the_latest_slice_is_over() -> None:
    slices = [slice_of(1, "x", 10.0, (500, 1000, 500)), slice_of(3, "x", 14.0, (250, 1000, 0)), slice_of(4, "x", 20.0, (100, 0, 0))]
    found = waits_s(slices, reports("x", (9.0, 8.5), (11.0, None), (13.0, 9.0), (19.0, None)))
    assert found == [pytest.approx(2.0), pytest.approx(2.25)], "from 8.5 to 10.5; from 12 to 14.25; nothing was ready before the third"


def test_parts_of_slices_and_times_without_any_are_the_wall_time() -> None:
    slices = [slice_of(1, "x", 10.0, (500, 1000, 500)), slice_of(2, "y", 13.0, (200, 300, 500))]
    found = described(slices, Reports(), 9.0, 20.0)
    assert (found["wall_s"], found["without_slice_s"], found["unaccounted_share"]) == (4.0, 1.0, 0.0)
    assert (found["switch_s"], found["busy_s"], found["idle_s"], found["wrongly_booked"]) == (0.7, 1.3, 1.0, 0)
    late = slices[1].model_copy(update={"ended_s": 15.0})
    assert described([slices[0], late], Reports(), 9.0, 20.0)["unaccounted_share"] == pytest.approx(0.2)
    other = slice_of(2, "y", 13.0, (200, 300, 500), booked_ms=999)
    assert described([slices[0], other], Reports(), 9.0, 20.0)["wrongly_booked"] == 1


def test_costs_are_those_of_the_line_through_the_sizes() -> None:
    load = PoolLoad("middle", 4, tool_s=1.0, size=4, turns=2)
    rows = [{"size": n, "generate_s": 2 * (0.3 + 0.1 * n), "train_s": 0.05 * n, "step_s": 2.0} for n in (2, 4, 8)]
    found = fitted(load, rows)
    assert (found.first_s, found.each_s, found.train_s) == (pytest.approx(0.3), pytest.approx(0.1), 0.2)
    assert found.off_s == pytest.approx(2.0 - 1.4 - 0.2)
    assert found.gain(4) == pytest.approx((1.0, 1.6, 2.0, 4 * 0.4 / 0.7))


def tables() -> dict[str, Executor]:
    found: dict[str, Executor] = {}
    for load in PAIR.pools:
        for kind, functions in (("rollout", (Function.GENERATE,)), ("trainer", (Function.TRAIN,))):
            name = f"{kind}-{load.base}"
            found[name] = Executor(name, load.base, functions, 2**30, 2**20, moves=MOVES)
    return found


BASES = [load.base for load in PAIR.pools]


def rows(times: float) -> list[dict[str, float]]:
    return [{"size": n, "generate_s": times * 2 * (0.1 + 0.01 * n), "train_s": times * 0.2, "step_s": times * 0.9} for n in (2, 4, 8)]


def test_simulated_figures_follow_the_costs() -> None:
    cheap, dear = (predict.simulated(arms.RATIO, PAIR, predict.Known(tables(), {base: rows(times) for base in BASES})) for times in (1, 4))
    assert dear["makespan_s"] > cheap["makespan_s"] > 12 * (0.2 + 2 * 0.11 + 2 * 0.5)
    assert cheap["switches"] > 12
    found = predict.compared(cheap, [{**cheap, "switches": cheap["switches"] * 1.2}])
    assert (found["makespan_s"]["is_within"], found["switches"]["is_within"]) == (True, False)
    assert found["switches"]["off_by"] == pytest.approx(1 / 1.2 - 1, abs=1e-3)


def test_time_of_orders_is_what_real_switches_take_beyond_their_moves() -> None:
    known = predict.Known(tables(), {base: rows(1) for base in BASES})
    alone = predict.simulated(arms.RATIO, PAIR, known)["switch_s"]
    seen = {PAIR: [{"booked": [{"switch_s": 40 * (alone + 0.05), "switches": 40}]}]}
    assert predict.order_s(known, seen) == pytest.approx(0.05, abs=1e-3)
    later = predict.simulated(arms.RATIO, PAIR, replace(known, order_s=0.05))
    assert later["switch_s"] == pytest.approx(alone + 0.05, abs=0.02)


def test_plan_of_a_run_says_whether_sharing_saves() -> None:
    def saved(tool_s: float, move_s: float) -> float:
        moves = {(Tier.DEVICE, Tier.HOST): (move_s,), (Tier.HOST, Tier.DEVICE): (move_s,)}
        phases = (((ENVIRONMENT, tool_s), (Function.GENERATE, 1.0)),) * 4
        trace = Trace(
            tuple(replace(one, moves=moves) for one in tables().values()), tuple(Task(base, base, base, 0.0, phases) for base in BASES)
        )
        return figures.advised(figures.traced({"trace": [traces.text_of(trace).splitlines()]}), PAIR).saved_share

    assert saved(tool_s=9.0, move_s=0.1) > 0.3
    assert saved(tool_s=0.5, move_s=2.0) < 0


def run_of(arm: str, trace: Trace, task_s: dict[str, float]) -> dict[str, object]:
    recorded = {"budget_mib": 1, "peak_private_mib": 1, "looks": 1, "held_by_several": 0, "computing_together": 0}
    whole_s = sum(task_s.values()) if arm == "dedicated" else max(task_s.values())
    return {
        "arm": arm, "workload": "pair", "load": 1.0, "accelerator_s": whole_s, "accelerator_s_per_step": whole_s / 8, "task_s": task_s,
        "busy_s": dict.fromkeys(BASES, 4.0), "bubble": [0.9, 0.9], "recorded": [recorded], "booked": [], "digests": {},
        "trace": [traces.text_of(trace).splitlines()],
    }  # fmt: skip


def test_plans_are_from_runs_that_shared_and_from_pools_alone() -> None:
    """Pools alone have no executors on an accelerator: what moves take is of the run that shared."""
    phases = (((ENVIRONMENT, 9.0), (Function.GENERATE, 1.0)),) * 4
    tasks = tuple(Task(base, base, base, 0.0, phases) for base in BASES)
    longer = tuple(replace(one, steps=(((ENVIRONMENT, 9.0), (Function.GENERATE, 2.0)),) * 4) for one in tasks)
    task_s = {f"{base}-0": 40.0 for base in BASES}
    runs = [run_of("ratio", Trace(tuple(tables().values()), tasks), task_s), run_of("dedicated", Trace((), longer), task_s)]
    found = figures.summary(PAIR, runs)
    assert found["planned"]["saved"][0] > found["planned_alone"]["saved"][0] > 0.3
    assert "from those of each pool alone: saved" in plex_tables.real({**found, "machine": {"processor": "p"}, "runs": []})


def test_runs_of_other_commits_are_added_once_and_named() -> None:
    phases = (((ENVIRONMENT, 9.0), (Function.GENERATE, 1.0)),) * 4
    trace = Trace(tuple(tables().values()), tuple(Task(base, base, base, 0.0, phases) for base in BASES))
    runs = [run_of("ratio", trace, dict.fromkeys(("middle-0", "large-0"), 40.0)) for _ in range(2)]
    new = {**runs[0], "commit": "b" * 12, "load": 2.0}
    result = {
        "commit": "a" * 12,
        "workload": json.loads(json.dumps(asdict(PAIR))),
        "runs": [kept.without_trace(one) for one in (*runs, new)],
    }
    added = kept.earlier_runs(result, PAIR, [new])
    assert [one["commit"] for one in added] == ["a" * 12] * 2
    assert kept.earlier_runs({}, PAIR, [new]) == []
    found = figures.summary(PAIR, [*added, new])
    assert found["arms"]["ratio"]["runs"] == 3
    assert found["planned"]["saved"][0] > 0.3, "from the run whose trace is there"
    page = plex_tables.real({**found, "commit": "b" * 12, "machine": {"processor": "p"}, "runs": [*added, new]})
    assert "2 runs are of aaaaaaa." in page
    with pytest.raises(BenchError, match="another workload than pair is now; measure without --add"):
        kept.earlier_runs(result, replace(PAIR, memory_gib=3.0), [])


def test_adapters_are_compared_among_runs_of_one_commit() -> None:
    def run(commit: str, *digests: str) -> dict[str, object]:
        return {"commit": commit, "digests": {"t": list(digests)}}

    assert figures.equal_digests([run("a", "x", "y"), run("a", "x", "y"), run("b", "z", "z")]) == {"t": True}
    assert figures.equal_digests([run("a", "x", "y"), run("b", "z", "z"), run("b", "z", "y")]) == {"t": False}


def test_unknown_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="'best' is no arm; there are dedicated"):
        arms.named("best")
