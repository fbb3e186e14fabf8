"""What sharing is expected to save, said before anything is moved; also where it loses."""

from pathlib import Path

import pytest

from bench.plex.workloads import Cell, cell_trace
from common.accelerators import Function, Tier
from common.accelerators import trace as traces
from common.accelerators.trace import ENVIRONMENT, Executor, Task, Trace
from scheduler_svc import plan
from scheduler_svc.decisions.accelerators.advice import advice, profile_of, switch_to_s
from scheduler_svc.decisions.accelerators.placement import Accelerator
from scheduler_svc.decisions.accelerators.state import Budget

PLENTY = [Accelerator("one", Budget(2**62, 2**62))]


def made(away_s: float, switch_s: float, pools: tuple[str, ...] = ("a", "b")) -> Trace:
    moves = {(Tier.HOST, Tier.DEVICE): (switch_s,), (Tier.DEVICE, Tier.HOST): (0.0,)}
    executors = [Executor(f"rollout-{pool}", pool, (Function.GENERATE,), 10, 10, moves=moves) for pool in pools]
    step = ((Function.GENERATE, 2.0), (ENVIRONMENT, away_s), (Function.TRAIN, 1.0))
    return Trace(tuple(executors), tuple(Task(f"task-{pool}", "acme", pool, 0.0, (step,) * 5) for pool in pools))


def test_pools_with_gaps_share_and_busy_ones_with_dear_switches_do_not() -> None:
    idle, busy = advice(made(15.0, 0.1), PLENTY), advice(made(1.0, 3.0), PLENTY)
    assert idle.bubble["a"] == pytest.approx(15 / 18)
    assert idle.together is not None and busy.together is not None
    assert idle.together.worth.saved_share > 0.3 and idle.best == idle.together
    assert busy.together.worth.saved_share < 0 and busy.best is None


def test_best_pair_is_named_where_all_together_lose() -> None:
    idle, busy = made(30.0, 1.0, ("a", "b")), made(0.5, 3.0, ("busy",))
    found = advice(Trace(idle.executors + busy.executors, idle.tasks + busy.tasks), PLENTY)
    assert found.best is not None and found.best.pools == ("a", "b")
    assert found.pairs[0].pools == ("a", "b") and len(found.pairs) == 3


def test_switch_is_parking_another_and_waking_this_one() -> None:
    trace = made(1.0, 2.0)
    parking = {(Tier.HOST, Tier.DEVICE): (9.0,), (Tier.DEVICE, Tier.HOST): (0.5,)}
    of_other = [Executor(f"{service}-b", "b", (Function.GENERATE,), 10, 10, moves=parking) for service in ("rollout", "trainer")]
    executors = (trace.executors[0], *of_other)
    assert switch_to_s("a", executors) == 2.0 + 2 * 0.5
    assert switch_to_s("b", executors) == 2 * 9.0
    assert switch_to_s("absent", executors) == 0.0


def test_profile_is_the_mean_step() -> None:
    trace = made(15.0, 0.1)
    found = profile_of(trace.tasks[0], trace.executors)
    assert (found.busy_s, found.away_s, found.steps, found.device_bytes) == (3.0, 15.0, 5, 10)


@pytest.mark.parametrize("cell", [Cell(2, 1, 0.8, 0.1), Cell(3, 2, 0.4, 1.0), Cell(2, 4, 0.3, 0.6), Cell(4, 1, 0.9, 0.02)], ids=str)
def test_advice_is_what_simulated_cells_are_compared_with(cell: Cell) -> None:
    """`bench.plex cells` compares the sign of `predicted` with what is played; a trace alone gives nearly the same."""
    from bench.plex.cells import predicted

    trace = cell_trace(cell, 5, 0)
    expected, found = predicted(trace, cell), advice(trace, PLENTY)
    assert found.together is not None
    assert found.together.worth.saved_share == pytest.approx(expected.saved_share, abs=0.03)


def test_program_says_when_sharing_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trace.jsonl"
    cases = ((made(1.0, 3.0), "sharing loses"), (made(15.0, 0.1), "share a, b:"), (made(1.0, 1.0, ("a",)), "nobody to share with"))
    for trace, said in cases:
        traces.write(file, trace)
        monkeypatch.setattr("sys.argv", ["plan", str(file)])
        plan.main()
        assert said in capsys.readouterr().out
    file.write_text('{"kind": "other"}\n')
    with pytest.raises(SystemExit, match="line 1"):
        plan.main()
