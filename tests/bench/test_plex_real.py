"""Figures of real runs on a shared accelerator, without a stack."""

from dataclasses import replace

import pytest

from bench.charts import plex_tables
from bench.plex.real import arms, figures, kept
from bench.plex.real.slices import Reports, described, waits_s
from bench.plex.real.workloads import TWO
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


def tables() -> dict[str, Executor]:
    found: dict[str, Executor] = {}
    for load in TWO.pools:
        for kind, functions in (("rollout", (Function.GENERATE,)), ("trainer", (Function.TRAIN,))):
            name = f"{kind}-{load.base}"
            found[name] = Executor(name, load.base, functions, 2**30, 2**20, moves=MOVES)
    return found


BASES = [load.base for load in TWO.pools]


def test_plan_of_a_run_says_whether_sharing_saves() -> None:
    def saved(tool_s: float, move_s: float) -> float:
        moves = {(Tier.DEVICE, Tier.HOST): (move_s,), (Tier.HOST, Tier.DEVICE): (move_s,)}
        phases = (((ENVIRONMENT, tool_s), (Function.GENERATE, 1.0)),) * 4
        trace = Trace(
            tuple(replace(one, moves=moves) for one in tables().values()), tuple(Task(base, base, base, 0.0, phases) for base in BASES)
        )
        return figures.advised(figures.traced({"trace": [traces.text_of(trace).splitlines()]}), TWO).saved_share

    assert saved(tool_s=9.0, move_s=0.1) > 0.3
    assert saved(tool_s=0.5, move_s=2.0) < 0


def run_of(arm: str, trace: Trace, task_s: dict[str, float]) -> dict[str, object]:
    recorded = {"budget_mib": 1, "peak_private_mib": 1, "looks": 1, "held_by_several": 0, "computing_together": 0}
    whole_s = sum(task_s.values()) if arm == "dedicated" else max(task_s.values())
    return {
        "arm": arm, "workload": "two", "load": 1.0, "accelerator_s": whole_s, "accelerator_s_per_step": whole_s / 8, "task_s": task_s,
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
    found = figures.summary(TWO, runs)
    assert found["planned"]["saved"][0] > found["planned_alone"]["saved"][0] > 0.3
    assert "from those of each pool alone: saved" in plex_tables.real({**found, "machine": {"processor": "p"}, "runs": []})


def test_adapters_are_compared_among_runs() -> None:
    def run(*digests: str) -> dict[str, object]:
        return {"digests": {"t": list(digests)}}

    assert figures.equal_digests([run("x", "y"), run("x", "y")]) == {"t": True}
    assert figures.equal_digests([run("x", "y"), run("x", "z")]) == {"t": False}


def test_result_has_no_traces_digests_and_windows_of_its_runs() -> None:
    run = {"arm": "ratio", "trace": [[]], "digests": {"t": ["x"]}, "recorded": [{"looks": 3, "together": [{"at_s": 1.0}]}]}
    assert kept.in_result(run) == {"arm": "ratio", "recorded": [{"looks": 3}]}


def test_unknown_arm_is_refused() -> None:
    with pytest.raises(ValueError, match="'best' is no arm; there are dedicated"):
        arms.named("best")
