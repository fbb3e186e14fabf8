"""Comparison of two tasks by what their evaluations found at each prompt."""

from typing import Any

import pytest

from common.client_api.errors import ClientError
from common.evaluation import Asked, EvaluationReport, packed
from marlaas.comparison import Evaluated, compare
from marlaas.reporting import tables

ASKED = Asked(environment="toy", options="a1", weights="b2", seed=0, temperature=0.0)


def report(version: int, rewards: dict[int, float], *, prompts: int = 40, **changes: Any) -> EvaluationReport:
    mean = sum(rewards.values()) / len(rewards)
    found = EvaluationReport(
        version=version,
        decides_by="lower_bound",
        reward=mean,
        interval=(mean - 0.1, mean + 0.1),
        prompts=len(rewards),
        binary=True,
        asked=ASKED,
        by_prompt=packed(rewards, prompts),
    )
    return found.model_copy(update=changes)


def passed(*prompts: int) -> dict[int, float]:
    return {prompt: float(prompt in prompts) for prompt in range(40)}


FIRST = Evaluated("a-1", [report(0, passed(1, 2)), report(20, passed(*range(20))), report(10, passed(*range(30)))])
SECOND = Evaluated("b-2", [report(0, passed(1, 2)), report(30, passed(*range(30)))])


def test_difference_is_of_the_second_task_at_the_same_prompts() -> None:
    found = compare(FIRST, SECOND)
    assert [one.version for one in found.reports] == [20, 30]
    assert (found.difference.mean, found.difference.prompts) == (0.25, 40)
    assert found.verdict == "b-2 is better"
    assert compare(SECOND, FIRST).verdict == "b-2 is better"
    assert compare(FIRST, SECOND, version="0").verdict == "no difference is shown"


def test_best_version_is_that_of_the_lower_bound_or_of_the_mean() -> None:
    assert [one.version for one in compare(FIRST, SECOND, version="best").reports] == [10, 30]
    certain = report(30, passed(*range(29)), interval=(0.72, 0.73))
    one = Evaluated("a", [*FIRST.reports, certain])
    assert one.chosen("main", "best").version == 30
    by_mean = Evaluated("a", [each.model_copy(update={"decides_by": "mean"}) for each in one.reports])
    assert by_mean.chosen("main", "best").version == 10


def test_best_version_is_chosen_by_the_protocol_that_decides() -> None:
    """So that another protocol's result of it is not the luckiest of many."""
    other = [each.model_copy(update={"protocol": "sampled", "decides_by": None}) for each in (FIRST.reports[1], FIRST.reports[2])]
    swapped = Evaluated("a", [*FIRST.reports, other[0], other[1].model_copy(update={"interval": (0.0, 1.0), "reward": 0.1})])
    assert swapped.chosen("sampled", "best").version == 10


def test_only_prompts_that_both_have_a_scored_attempt_at_are_paired() -> None:
    partial = Evaluated("b", [report(30, dict.fromkeys(range(10, 60), 1.0), prompts=60)])
    found = compare(FIRST, partial)
    assert (found.difference.prompts, found.difference.mean) == (30, pytest.approx(2 / 3))
    with pytest.raises(ClientError, match="tasks a-1 and b have no prompt in common"):
        compare(FIRST, Evaluated("b", [report(30, {50: 1.0}, prompts=60)]))


@pytest.mark.parametrize(
    ("other", "arguments", "said"),
    [
        ({"asked": ASKED.model_copy(update={"environment": "x"})}, {}, "environment.name is 'toy' in a-1 and 'x' in b"),
        ({"asked": ASKED.model_copy(update={"options": "x"})}, {}, "environment.options or evaluation.options differ; only equal prompts"),
        ({"asked": ASKED.model_copy(update={"weights": "x"})}, {}, "environment.weights differ"),
        ({"asked": ASKED.model_copy(update={"seed": 7})}, {}, "by protocol 'main': evaluation.seed is 0 in a-1 and 7 in b"),
        ({"asked": ASKED.model_copy(update={"temperature": 1.0})}, {}, "evaluation.temperature is 0.0 in a-1 and 1.0 in b"),
        ({"protocol": "greedy"}, {}, "task b has no protocol 'main'; there are: greedy"),
        ({}, {"protocol": "odd"}, "task a-1 has no protocol 'odd'; there are: main"),
        ({}, {"version": "5"}, "task a-1: protocol 'main' has no version '5'; use best, last or one of 0, 10, 20"),
        ({}, {"version": "newest"}, "has no version 'newest'; use best, last or one of"),
    ],
)
def test_what_cannot_be_compared_is_named(other: dict[str, Any], arguments: dict[str, str], said: str) -> None:
    with pytest.raises(ClientError) as caught:
        compare(FIRST, Evaluated("b", [report(20, passed(1), **other)]), **arguments)
    assert said in str(caught.value)


def test_task_without_evaluations_is_named() -> None:
    with pytest.raises(ClientError, match=r"task b has no evaluation; set evaluation\.every, or wait for its first"):
        compare(FIRST, Evaluated("b", []))


def test_lines_show_both_means_and_what_the_difference_says() -> None:
    assert tables.comparison_lines(compare(FIRST, SECOND)) == [
        "protocol main, 40 prompts in common",
        "a-1 version 20: reward 0.500 (0.400 to 0.600), 40 prompts",
        "b-2 version 30: reward 0.750 (0.650 to 0.850), 40 prompts",
        "difference +0.250 (+0.089 to +0.387): b-2 is better",
    ]
