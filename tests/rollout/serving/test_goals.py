"""Deadlines of requests on this host's clock, and what counts as met."""

import math
from typing import Any

import pytest
from prometheus_client import REGISTRY
from pydantic import ValidationError
from structlog.testing import capture_logs

from common.goals import GoalTally, Outcome
from common.messages import ServedSampling, ServeRequest
from common.pools import Goals
from rollout_svc.coserving.figures import Figures
from rollout_svc.engine.stream import RequestGoals
from rollout_svc.serving.goals import MAX_GAP, Watch, goals_of

GOALS = Goals(ttft_s=0.1, tpot_s=0.01)
DUE_S = 5.0


def request(asked_s: float, sampled: bytes = b"") -> ServeRequest:
    return ServeRequest(
        request="q",
        attempt=0,
        gateway="g",
        tenant="acme",
        key=None,
        pool="tiny",
        adapter=None,
        text="a",
        sampling=ServedSampling(seed=1),
        sampled=sampled,
        first_token_by_s=1.0,
        asked_s=asked_s,
    )


@pytest.mark.parametrize(
    ("asked_s", "sampled", "left_s"),
    [
        (1000.0, b"", 0.1),
        (999.96, b"", 0.06),
        (990.0, b"", -9.9),
        (0.0, b"", 0.1),  # unknown
        (1010.0, b"", 0.1),  # the gateway's clock is ahead
        (990.0, b"\1\0\0\0", 0.1),  # its first token has been sent
    ],
)
def test_deadline_is_on_the_monotonic_clock_and_counts_from_the_request(asked_s: float, sampled: bytes, left_s: float) -> None:
    due = goals_of(request(asked_s, sampled), GOALS, 1000.0, 50.0)
    assert due.first_due_s == pytest.approx(50.0 + left_s)
    assert due.tpot_s == GOALS.tpot_s


@pytest.mark.parametrize("asked_s", [math.nan, math.inf, -1.0, "soon"])
def test_time_that_is_none_is_refused(asked_s: Any) -> None:
    with pytest.raises(ValidationError, match="asked_s"):
        request(asked_s)


def judged(*sent_s: float, ends: bool = True, is_cold: bool = False, resumes: bool = False, tokens: int = 1) -> Outcome | None:
    """Outcome of an attempt whose deltas were sent at these times, each with as many tokens."""
    watch = Watch(RequestGoals(DUE_S, 0.01), resumes=resumes, is_cold=is_cold)
    for when_s in sent_s:
        watch.sent(tokens, when_s)
    return watch.outcome(sent_s[-1] + 100.0, has_ended=ends)


@pytest.mark.parametrize(
    ("times_s", "outcome"),
    [
        ([4.9], "met"),
        ([DUE_S], "met"),
        ([5.1], "first"),
        ([5.1, 9.0], "first"),  # the first miss counts
        ([4.9, 4.91, 4.92], "met"),
        ([4.9, 4.905, 4.9199], "met"),  # the second was slow; the mean counts
        ([4.9, 4.915, 4.93], "next"),
        ([4.9, *(4.95 + 0.001 * place for place in range(100))], "next"),  # fast, after a gap
    ],
)
def test_outcome_of_a_reply(times_s: list[float], outcome: Outcome) -> None:
    assert judged(*times_s) == outcome


def test_mean_is_about_tokens_not_about_messages() -> None:
    assert judged(4.9, 4.93, 4.96, tokens=4) == "met"
    assert judged(4.9, 4.93, 4.96, tokens=2) == "next"


def test_late_first_token_of_a_version_that_was_not_loaded_is_cold() -> None:
    assert judged(5.1, is_cold=True) == "cold"
    assert judged(4.9, is_cold=True) == "met"


def test_reply_that_is_cut_short_counts_only_if_it_has_missed() -> None:
    assert judged(4.9, 4.9 + MAX_GAP * 0.01 + 0.001, ends=False) == "next"
    assert judged(4.9, 4.91, 4.93, ends=False) is None


def test_attempt_after_a_lost_one_has_missed() -> None:
    assert judged(4.9, 4.91, resumes=True) == "next"


@pytest.mark.parametrize(("left_s", "outcome"), [(4.9, None), (5.1, "first")])
def test_request_without_a_first_token_has_missed_only_if_it_was_due(left_s: float, outcome: Outcome | None) -> None:
    assert Watch(RequestGoals(DUE_S, 0.01)).outcome(left_s, has_ended=False) == outcome


def test_without_goals_nothing_is_judged() -> None:
    watch = Watch(None)
    watch.sent(1, 1e9)
    assert watch.outcome(2e9, has_ended=True) is None


async def test_counts_are_in_the_report_and_the_metrics_and_misses_in_a_log_line_a_minute() -> None:
    def metric(pool: str, outcome: str) -> float:
        return REGISTRY.get_sample_value("marlaas_goals_total", {"pool": pool, "outcome": outcome}) or 0.0

    tally, before = GoalTally(), metric("a", "first")
    assert tally.busy == {}
    with capture_logs() as lines:
        for pool, outcome in [("a", "met"), ("a", "first"), ("b", "refused"), ("c", "met")]:
            tally.count(pool, outcome)  # type: ignore[arg-type]
        await tally._log()
        tally.count("a", "met")
        await tally._log()
        tally.count("a", "cold")
        await tally._log()
    assert [{name: line[name] for name in line if name not in ("log_level", "seconds")} for line in lines] == [
        {"event": "goals_missed", "pool": "a", "met": 1, "first": 1},
        {"event": "goals_missed", "pool": "b", "refused": 1},
        {"event": "goals_missed", "pool": "a", "cold": 1},
    ]
    assert tally.busy == {"goals_met": 3.0, "goals_first": 1.0, "goals_refused": 1.0, "goals_cold": 1.0}
    assert metric("a", "first") == before + 1


def test_report_shows_the_engines_figures() -> None:
    figures = Figures(held=3, preempted=4, recomputed_tokens=50, faults=1, median_error=0.05, p95_error=0.2)
    assert figures.busy == {
        "rollouts_held": 3,
        "rollouts_preempted": 4,
        "recomputed_tokens": 50,
        "plan_faults": 1,
        "step_time_error": 0.05,
        "step_time_p95_error": 0.2,
        "goals_off": 0,
    }
