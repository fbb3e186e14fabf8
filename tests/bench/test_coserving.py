"""Sums of `python -m bench.coserving` against cases computed by hand."""

import asyncio
from types import SimpleNamespace

import pytest

from bench.charts.serving_tables import arms
from bench.coserving.arms import BESIDE, FCFS, LOADS, checks
from bench.coserving.load import BURST, BURST_EVERY_S, BURST_S, Load, Rollouts, rollout
from bench.coserving.sums import DECIDES, Asked, Row, Window, at_least, at_most, attained, best_cap, capped, quiet, row, table
from common.pools import Goals
from rollout_svc.coserving.plan import Certain, Plan, Wanted
from rollout_svc.coserving.step_time import StepTime
from rollout_svc.engine.engine import SampleRequest

GOALS = Goals(ttft_s=0.1, tpot_s=0.01)


def asked(*came_s: float, is_complete: bool = True) -> Asked:
    found = Asked(is_complete=is_complete)
    for at_s in came_s:
        found.came(1, at_s)
    return found


@pytest.mark.parametrize(
    ("one", "missed"),
    [
        (asked(0.1, 0.11, 0.12), None),
        (asked(0.1001, 0.11), "first"),
        (asked(0.1, 0.1201), "next"),
        (asked(0.1, 0.11, 0.12, is_complete=False), "failed"),
        (asked(), "failed"),
        (asked(is_complete=True), "failed"),
        (asked(0.05), None),
    ],
)
def test_request_misses_the_first_goal_it_exceeds(one: Asked, missed: str | None) -> None:
    assert one.missed(GOALS) == missed


def test_mean_between_tokens_counts_those_that_come_together() -> None:
    one = asked(0.02)
    one.came(2, 0.04)
    assert (one.tpot_s, one.gap_s) == (pytest.approx(0.01), pytest.approx(0.02))


def test_failed_requests_lower_what_is_attained() -> None:
    windows = [Window([asked(0.05, 0.06)] * 3, GOALS), Window([asked(0.05, is_complete=False)], GOALS)]
    assert attained(windows) == 0.75
    assert attained([Window([], GOALS)]) == 1.0
    of = row("ours", windows)
    assert [of[name] for name in ("requests", "attained", "first", "next", "failed")] == [4, 0.75, 0, 0, 1]


def test_rollout_tokens_are_over_the_seconds_of_all_rounds() -> None:
    of = row("training", [Window([], GOALS, 2.0, 300, [1.0, 2.0]), Window([], GOALS, 1.0, 300, [3.0])])
    assert of == {"arm": "training", "tokens_per_s": 200, "step_p50_s": 2.0, "step_p90_s": 3.0}


def test_round_counts_if_its_own_alone_is_near_the_quietest() -> None:
    def alone(last_s: float, *, is_complete: bool = True) -> Window:
        return Window([asked(0.01, last_s, is_complete=is_complete)], GOALS)

    assert quiet([alone(0.116), alone(0.1), alone(0.114), alone(0.05, is_complete=False)]) == [1, 2]
    assert quiet([alone(0.1, is_complete=False)]) == [0]


def test_best_cap_is_the_fastest_that_attains() -> None:
    rows: list[Row] = [
        {"arm": "ours", "attained": 1.0, "tokens_per_s": 9000},
        {"arm": "cap-8", "attained": 0.995, "tokens_per_s": 3000},
        {"arm": "cap-16", "attained": 0.99, "tokens_per_s": 3500},
        {"arm": "cap-32", "attained": 0.9, "tokens_per_s": 4000},
    ]
    assert best_cap(rows, 0.99) == 3500
    assert best_cap(rows[:1], 0.99) == 0


def test_requests_come_at_their_mean_rate_and_more_of_them_in_bursts() -> None:
    times = Load(20.0).arrivals(1000.0, seed=1)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert times == Load(20.0).arrivals(1000.0, seed=1) != Load(20.0).arrivals(1000.0, seed=2)
    bursts = Load(20.0, has_bursts=True).arrivals(1000.0, seed=1)
    inside = sum(BURST_S <= at_s % BURST_EVERY_S < 2 * BURST_S for at_s in bursts)
    assert inside == pytest.approx(20.0 * BURST * 1000.0 * BURST_S / BURST_EVERY_S, rel=0.05)
    assert len(bursts) - inside == pytest.approx(20.0 * 1000.0 * (1 - BURST_S / BURST_EVERY_S), rel=0.05)
    assert Load(0.0).arrivals(10.0, seed=1) == []


@pytest.mark.parametrize(
    ("most", "running", "prompts", "planned"),
    [(16, 20, 3, Plan(16, 0)), (16, 14, 3, Plan(14, 2)), (16, 4, 3, Plan(4, 3)), (0, 5, 2, Plan(0, 0)), (0, 0, 2, Plan(0, 0))],
)
def test_cap_counts_prompts_and_computes_none_while_a_rollout_is_held(most: int, running: int, prompts: int, planned: Plan) -> None:
    wanted = Wanted(running, [24] * prompts)
    assert capped(most)(0.0, Certain([], 1, 0, 0.0), wanted, StepTime(), guaranteed=True) == planned


def test_each_arm_with_goals_has_a_decision_and_each_load_its_checks() -> None:
    assert {one for one in BESIDE if one.startswith("cap-") or one in ("slices", "ours")} == DECIDES.keys()
    served: Row = {"attained": 1.0, "ttft_p99": 90.0, "tpot_p99": 9.0, "tokens_per_s": 1000}
    rows = [{"load": load, "arm": arm, **served} for load in LOADS for arm in (*BESIDE, "tight", "idle", "training")]
    found = {one["check"]: one["holds"] for one in checks(rows, GOALS)}
    assert found.pop("30 %: ours attains")
    assert not found.pop("70 %: vLLM's order attains"), f"{FCFS} attains all"
    assert not found.pop("bursts: rollout tokens over time slices")
    assert found.pop("bursts: rollout tokens over the best cap that attains")


async def test_tokens_of_rollouts_that_end_while_others_run_are_all_counted() -> None:
    class Engine:
        process = SimpleNamespace(progress=dict)

        async def sample(self, request: SampleRequest) -> SimpleNamespace:
            await asyncio.sleep(0)
            return SimpleNamespace(ids=[1] * request.max_tokens)

    async def unchanged(task: int) -> str:
        return f"task-{task}"

    found = Rollouts(SimpleNamespace(engine=Engine()), unchanged)  # type: ignore[arg-type]
    asked = [rollout(number, None) for number in range(3)]
    await asyncio.gather(*map(found._sample, asked))
    assert found.tokens() == sum(one.max_tokens for one in asked) > max(one.max_tokens for one in asked)


def test_page_says_which_checks_fail_and_which_rounds_were_left_out() -> None:
    rows = [
        {"load": "30 %", "arm": "ours", "requests": 8, "attained": 0.875, "ttft_p50": 1.0, "ttft_p99": 2.5, "tokens_per_s": 1234},
        {"load": "30 %", "arm": "training", "tokens_per_s": 2000, "step_p50_s": 0.5, "step_p90_s": 1.5},
    ]
    result = {
        "machine": {"cores": 2, "processor": "x", "load_before": 0.1},
        "rows": rows,
        "checks": [at_least("ours attains", 0.875, 0.99), at_most("class", 0.01, 0.02)],
        "goals_ms": {"ttft": 50.04, "tpot": 9.0},
        "rounds": 5,
        "seconds": 4.0,
        "rounds_left_out": {"30 %": 2},
    }
    page = arms(result)
    assert "| 30 % | ours | 8 | 87.5% | 1 / 2.5 | – / – | 1,234 | – / – |" in page
    assert "| 30 % | training | – | – | – / – | – / – | 2,000 | 0.5 / 1.5 |" in page
    assert "Goals: 50.0 ms to the first token, 9.0 ms a further one. 5 rounds of 4 s; not quiet and left out: 2 at 30 %." in page
    assert "| ours attains | 0.875 | >= 0.99 | **no** |\n| class | 0.01 | <= 0.02 | yes |" in page


def test_table_leaves_empty_what_a_row_lacks() -> None:
    rows: list[Row] = [{"arm": "ours", "requests": 3}, {"arm": "training", "tokens": 12}]
    assert table(rows).splitlines() == ["arm       requests  tokens", "ours      3", "training            12"]
