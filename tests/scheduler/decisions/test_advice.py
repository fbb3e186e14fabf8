"""What sharing is expected to save, said before anything is moved; also where it loses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.plex.cells import MIN_STEPS, predicted
from bench.plex.workloads import Cell, cell_trace
from common.accelerators import Function, Tier
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Executor, Task, Trace
from scheduler_svc import plan
from scheduler_svc.accelerators.decisions.advice import MAX_VISITS, ORDER_S, Accelerator, advice, profile_of, switches_s
from scheduler_svc.accelerators.decisions.load import Profile
from scheduler_svc.accelerators.decisions.state import MemoryBudget
from tests.support.paths import ROOT

PLENTY = [Accelerator("one", MemoryBudget(2**62, 2**62))]


def made(away_s: float, switch_s: float, pools: tuple[str, ...] = ("a", "b")) -> Trace:
    moves = {(Tier.HOST, Tier.DEVICE): (switch_s,), (Tier.DEVICE, Tier.HOST): (0.0,)}
    executors = [Executor(f"rollout-{pool}", pool, (Function.GENERATE, Function.TRAIN), 10, 10, Tier.HOST, moves=moves) for pool in pools]
    step = ((Function.GENERATE, 2.0), (ENVIRONMENT, away_s), (Function.TRAIN, 1.0))
    return Trace(tuple(executors), tuple(Task(f"task-{pool}", "acme", pool, 0.0, (step,) * 5) for pool in pools))


def test_pools_with_gaps_share_and_busy_ones_with_dear_switches_do_not() -> None:
    idle, busy = advice(made(15.0, 0.1), PLENTY), advice(made(1.0, 3.0), PLENTY)
    assert idle.bubble["a"] == pytest.approx(15 / 18)
    assert idle.together is not None and busy.together is not None
    assert idle.together.worth.saved_share > 0.3 and idle.best == idle.together
    assert busy.together.worth.saved_share < 0 and busy.best is None


def test_best_pair_is_named_where_all_together_lose() -> None:
    idle, busy = made(30.0, 1.0, ("a", "b")), made(0.5, 30.0, ("busy",))
    found = advice(Trace(idle.executors + busy.executors, idle.tasks + busy.tasks), PLENTY)
    assert found.best is not None and found.best.pools == ("a", "b")
    assert found.pairs[0].pools == ("a", "b") and len(found.pairs) == 3


def executor(service: str, pool: str, functions: tuple[Function, ...], size: int, there_s: float, back_s: float) -> Executor:
    moves = {(Tier.HOST, Tier.DEVICE): (there_s,), (Tier.DEVICE, Tier.HOST): (back_s,), (Tier.DEVICE, Tier.DEVICE): (0.0,)}
    return Executor(f"{service}-{pool}", pool, functions, size, size, Tier.HOST, moves=moves)


def switching(*executors: Executor, visits: float = 1.0, device_bytes: int | None = None) -> dict[str, float]:
    """What of `switches_s` the moves take."""
    pools = sorted({one.pool for one in executors})
    profiles = [Profile(pool, pool, 1.0, 1.0, visits=visits) for pool in pools]
    count = {pool: sum(one.pool == pool for one in executors) for pool in pools}
    found = switches_s(profiles, executors, device_bytes)
    return {pool: seconds - ORDER_S * (1 + (count[pool] - 1) / visits) for pool, seconds in found.items()}


def test_switches_of_many_visits_are_known_at_once() -> None:
    """Of some of them: what is looked at grows faster than their number."""
    pools = [executor("rollout", pool, (Function.GENERATE,), 10, 2.0, 1.0) for pool in "ab"]
    trainers = [executor("trainer", pool, (Function.TRAIN,), 10, 2.0, 1.0) for pool in "ab"]
    profiles = [Profile(pool, pool, 1.0, 1.0, visits=1e6) for pool in "ab"]
    few = [Profile(pool, pool, 1.0, 1.0, visits=MAX_VISITS) for pool in "ab"]
    assert switches_s(profiles, (*pools, *trainers)) == switches_s(few, (*pools, *trainers))


def test_switch_is_parking_another_and_waking_this_one() -> None:
    a, b = executor("rollout", "a", (Function.GENERATE,), 10, 2.0, 0.5), executor("rollout", "b", (Function.GENERATE,), 10, 9.0, 0.25)
    assert switching(a, b) == {"a": pytest.approx(2.0 + 0.25), "b": pytest.approx(9.0 + 0.5)}
    assert switches_s([Profile("x", "absent", 1.0, 1.0)], (a, b)) == {"absent": 0.0}


def test_switch_moves_only_what_has_no_room_beside_the_next() -> None:
    a, b = executor("rollout", "a", (Function.GENERATE,), 10, 2.0, 0.5), executor("rollout", "b", (Function.GENERATE,), 10, 9.0, 0.25)
    assert switching(a, b, device_bytes=20) == {"a": pytest.approx(0.0), "b": pytest.approx(0.0)}
    train = (Function.TRAIN, Function.SCORE)
    trainers = executor("trainer", "a", train, 10, 0.1, 0.1), executor("trainer", "b", train, 30, 0.1, 0.1)
    found = switching(a, b, *trainers, device_bytes=40)
    assert max(found.values()) < 3.0, "of the moves, those of the trainers make most of the room"


def test_trainer_is_switched_once_a_step_and_the_sampler_for_each_visit() -> None:
    pools = [
        executor(service, pool, functions, 10, seconds, 0.0)
        for pool in ("a", "b")
        for service, functions, seconds in (("rollout", (Function.GENERATE,), 1.0), ("trainer", (Function.TRAIN,), 4.0))
    ]
    once, twice = switching(*pools, device_bytes=10), switching(*pools, visits=2.0, device_bytes=10)
    assert once == {"a": pytest.approx(5.0), "b": pytest.approx(5.0)}
    assert twice == {"a": pytest.approx(3.0), "b": pytest.approx(3.0)}


def test_visits_are_returns_from_the_environment_and_private_samplers_are_away() -> None:
    generate, away, train = (Function.GENERATE, 2.0), (ENVIRONMENT, 3.0), (Function.TRAIN, 1.0)
    task = Task("t", "acme", "a", 0.0, ((generate, away, generate, away, train),) * 2)
    found = profile_of(task, ())
    assert (found.visits, found.busy_s, found.away_s) == (2.0, 5.0, 6.0), "training, and sampling of the next step, are one visit"
    trainer = executor("trainer", "a", (Function.TRAIN, Function.SCORE), 10, 1.0, 1.0)
    found = profile_of(task, (trainer,))
    assert (found.visits, found.busy_s, found.away_s) == (1.0, 1.0, 10.0)
    together = replace(task, steps=((train,),) * 2, members=(((generate, away), (away, generate, away)),) * 2)
    assert profile_of(together, ()).visits == 2.0
    assert profile_of(together, (trainer,)).away_s == 8.0, "the longest trajectory, where it samples too"


def test_profile_is_the_mean_step() -> None:
    trace = made(15.0, 0.1)
    found = profile_of(trace.tasks[0], trace.executors)
    assert (found.busy_s, found.away_s, found.steps, found.device_bytes) == (3.0, 15.0, 5, 10)


@pytest.mark.parametrize("cell", [Cell(2, 1, 0.8, 0.1), Cell(3, 2, 0.4, 1.0), Cell(2, 4, 0.3, 0.6), Cell(4, 1, 0.9, 0.02)], ids=str)
def test_advice_is_what_simulated_cells_are_compared_with(cell: Cell) -> None:
    """`bench.plex cells` compares the sign of `predicted` with what is played; a trace alone gives nearly the same."""
    trace = cell_trace(cell, 5, 0)
    expected, found = predicted(trace, cell), advice(trace, PLENTY)
    assert found.together is not None
    assert found.together.worth.saved_share == pytest.approx(expected.saved_share, abs=0.03)


def test_program_says_when_sharing_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.jsonl"
    cases = ((made(1.0, 3.0), "sharing loses"), (made(15.0, 0.1), "share a, b:"), (made(1.0, 1.0, ("a",)), "no other to share with"))
    for trace, said in cases:
        traces.write(file, trace)
        monkeypatch.setattr("sys.argv", ["plan", str(file)])
        plan.main()
        assert said in capsys.readouterr().out
    file.write_text('{"kind": "other"}\n')
    with pytest.raises(SystemExit, match="line 1"):
        plan.main()


@pytest.mark.parametrize("away_s", [step / 4 for step in range(60)])
def test_plan_places_tasks_where_sharing_pays_alone(away_s: float) -> None:
    """Never "saves 1 %, a step takes 3 times as long", and then tasks on one accelerator."""
    trace = made(away_s, 0.8, ("a", "b", "c"))
    found = advice(trace, PLENTY)
    text = "\n".join(plan.lines(trace, found))
    assert ("place " in text or "no room" in text) == (found.best is not None)
    if found.best is not None:
        assert found.best.worth.saved_share >= 0.05 * (found.best.worth.slowdown - 1)
    elif found.together is not None and found.together.worth.saved_share > 0:
        assert "sharing does not pay" in text


def test_program_says_where_nothing_is_known_of_switches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.jsonl"
    trace = made(15.0, 0.1)
    for known, is_said in ((trace, False), (replace(trace, executors=trace.executors[:1]), True)):
        traces.write(file, known)
        monkeypatch.setattr("sys.argv", ["plan", str(file), "--device-gib", "1"])
        plan.main()
        assert ("nothing is known of switches to b" in capsys.readouterr().out) is is_said


def test_signs_of_simulated_cells_are_said_before() -> None:
    """A fourth of the published cells: those with four tasks a pool, in which most wrong signs were."""
    found = json.loads((ROOT / "bench/results/plex-cells.json").read_text())
    rights = list[bool]()
    for row in found["rows"]:
        if row["tasks"] == 4:
            cell = Cell(row["pools"], row["tasks"], row["idle"], row["switch"])
            expected = predicted(cell_trace(cell, MIN_STEPS, 0), cell)
            rights.append(expected.is_worth_it == (row["saved"]["ratio"] > 0))
    assert len(rights) == 60
    assert sum(rights) >= 0.9 * len(rights)
