"""Plans of engine steps against all possible ones, and dues of tokens."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from rollout_svc.coserving.plan import AIMED, LONGEST_GAP, Certain, Due, Plan, Share, Stream, Wanted, decide, next_due, prompts_at_once
from rollout_svc.coserving.step_time import StepTime

TIMES = StepTime([(decodes, tokens, 2e-3 + 1e-4 * decodes + 1e-4 * tokens) for decodes in (0, 8, 64) for tokens in (0, 100)] * 50)
TIMES.margin = 1.2


def states(count: int) -> Iterator[tuple[float, Certain, Wanted]]:
    random = Random(0)
    for _ in range(count):
        now_s = random.uniform(0, 1e5)
        dues_s = [now_s + random.choice((random.uniform(-0.01, 0.05), random.uniform(0, 0.01))) for _ in range(random.randrange(5))]
        certain = Certain(dues_s, random.randrange(16), random.choice((0, 0, random.randrange(200))), random.choice((0.0, 0.003)))
        yield now_s, certain, Wanted(random.randrange(40), [random.randrange(1, 200) for _ in range(random.randrange(6))])


def best(now_s: float, certain: Certain, wanted: Wanted) -> Plan:
    """The plan with the most rollouts, then the most prompts, found among all."""
    left_s = [due - now_s - certain.under_way_s for due in certain.dues_s]
    alone_s = TIMES.expected_s(certain.decodes, certain.prefill_tokens)

    def keeps_all(plan: Plan) -> bool:
        tokens = certain.prefill_tokens + sum(wanted.prompts[: plan.prompts])
        took_s = TIMES.margin * TIMES.expected_s(certain.decodes + plan.running, tokens)
        return all(took_s <= left for left in left_s if left >= alone_s)

    plans = [Plan(running, 0) for running in range(wanted.running + 1)]
    plans += [Plan(wanted.running, prompts) for prompts in range(1, len(wanted.prompts) + 1)]
    return max(filter(keeps_all, plans), key=lambda plan: (plan.running, plan.prompts), default=Plan(0, 0))


def test_a_plan_is_the_best_of_all() -> None:
    held = 0
    for now_s, certain, wanted in states(4_000):
        plan = decide(now_s, certain, wanted, TIMES, guaranteed=False)
        assert plan == best(now_s, certain, wanted)
        held += plan.running < wanted.running
    assert 500 < held < 3_500


def test_more_slack_runs_no_fewer() -> None:
    """As long as no further request is lost: then it stops to hold others back."""
    for now_s, certain, wanted in states(2_000):
        alone_s = TIMES.expected_s(certain.decodes, certain.prefill_tokens)
        kept = [due for due in certain.dues_s if due - now_s - certain.under_way_s >= alone_s]
        plans = [
            decide(now_s, replace(certain, dues_s=[due + more_s for due in kept]), wanted, TIMES, guaranteed=False)
            for more_s in (0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.1)
        ]
        reached = [(plan.running, plan.prompts) for plan in plans]
        assert reached == sorted(reached)


def test_no_prompt_enters_while_a_rollout_is_held() -> None:
    plans = [(decide(now_s, certain, wanted, TIMES, guaranteed=False), wanted) for now_s, certain, wanted in states(2_000)]
    assert all(plan.prompts == 0 for plan, wanted in plans if plan.running < wanted.running)


def test_without_a_request_that_can_be_in_time_all_run() -> None:
    wanted = Wanted(30, [100, 100])
    assert decide(5.0, Certain([], 4, 0, 0.0), wanted, TIMES, guaranteed=False) == Plan(30, 2)
    assert decide(5.0, Certain([4.9, 5.001], 4, 0, 0.0), wanted, TIMES, guaranteed=False) == Plan(30, 2)


def test_owed_step_runs_all_rollouts_and_one_prompt() -> None:
    certain = Certain([5.0035], 4, 0, 0.0)
    assert decide(5.0, certain, Wanted(30, [100, 100]), TIMES, guaranteed=True) == Plan(30, 1)
    assert decide(5.0, certain, Wanted(30, []), TIMES, guaranteed=True) == Plan(30, 0)
    assert decide(5.0, certain, Wanted(30, [100]), TIMES, guaranteed=False) == Plan(5, 0)


STREAM = Stream(first_s=10.0, last_s=10.09, tokens=10, left=20, tpot_s=0.01 / AIMED)


def test_time_saved_by_early_tokens_is_slack_up_to_the_longest_gap() -> None:
    assert next_due(STREAM, 0.004).by_s(10.09, 0.004) == pytest.approx(10.1)
    early = replace(STREAM, last_s=10.08)
    assert next_due(early, 0.004).by_s(10.08, 0.004) == pytest.approx(10.1)
    earliest = replace(STREAM, last_s=10.01)
    assert next_due(earliest, 0.004).by_s(10.01, 0.004) == pytest.approx(10.01 + LONGEST_GAP * 0.01)


def test_late_stream_that_can_catch_up_holds_all_rollouts_and_one_that_cannot_holds_none() -> None:
    late, begins_s, step_s = replace(STREAM, last_s=10.12), 10.12, TIMES.expected_s(4, 0)
    due = next_due(late, step_s).by_s(begins_s, step_s)
    assert decide(begins_s, Certain([due], 4, 0, 0.0), Wanted(30, [9]), TIMES, guaranteed=False) == Plan(0, 0)
    lost = replace(late, left=2)
    due = next_due(lost, step_s).by_s(begins_s, step_s)
    assert decide(begins_s, Certain([due], 4, 0, 0.0), Wanted(30, [9]), TIMES, guaranteed=False) == Plan(30, 1)


def test_stream_past_the_planned_time_and_not_past_its_goal_still_holds_all_rollouts() -> None:
    """Its last token: by the plan it was due at 10.1, by its goal at 10.111."""
    step_s = TIMES.expected_s(4, 0)
    for begins_s, plan in ((10.105, Plan(0, 0)), (10.111 - step_s, Plan(0, 0)), (10.112 - step_s, Plan(30, 1))):
        due = next_due(replace(STREAM, left=1), step_s).by_s(begins_s, step_s)
        assert decide(begins_s, Certain([due], 4, 0, 0.0), Wanted(30, [9]), TIMES, guaranteed=False) == plan


def test_first_token_past_the_planned_time_is_lost_only_past_its_goal() -> None:
    assert Due(10.09, 10.1).by_s(10.05, 0.004) == 10.09
    assert 10.092 < Due(10.09, 10.1).by_s(10.088, 0.004) < 10.0921
    assert Due(10.09, 10.1).by_s(10.097, 0.004) == 10.09


def test_prompts_wait_for_each_other_beyond_the_slack_of_streams() -> None:
    fits_s = TIMES.margin * TIMES.expected_s(4, 100)
    assert prompts_at_once(fits_s, 4, [50, 50, 50], TIMES) == 2
    assert prompts_at_once(0.0, 4, [50, 50, 50], TIMES) == 1
    assert prompts_at_once(float("inf"), 4, [50, 50, 50], TIMES) == 3
    assert prompts_at_once(0.0, 4, [], TIMES) == 0


def test_first_prompt_waits_for_a_stream_that_would_miss_its_goal_while_it_can() -> None:
    took_s, alone_s = TIMES.margin * TIMES.expected_s(4, 50), TIMES.margin * TIMES.expected_s(4, 0)

    def entering(left_s: float, spare_s: float) -> int:
        return prompts_at_once(0.0, 4, [50, 50], TIMES, left_s=left_s, spare_s=spare_s)

    assert entering(took_s, 1.0) == 1
    assert entering(0.9 * took_s, 1.0) == 0
    assert entering(0.9 * took_s, took_s + 1.1 * alone_s) == 0
    assert entering(0.9 * took_s, took_s + 0.9 * alone_s) == 1


def test_share_is_that_of_the_last_seconds() -> None:
    share = Share()
    assert share.value == 1.0
    for step in range(2_000):
        share.add(8, 8, step * 0.005)
    assert share.value == 1.0
    for step in range(2_000, 10_000):
        share.add(0, 8, step * 0.005)
    assert share.value < 0.1
    for step in range(10_000, 12_000):
        share.add(8, 8, step * 0.005)
    assert 0.5 < share.value < 1.0
