"""Which passes of a step are of the function `score`."""

from collections.abc import Generator
from contextlib import contextmanager

from tests.support.trainer.groups import make_groups
from tests.trainer.steps import BUDGET, DIFFERENT, begin
from trainer_svc.algorithm.batched_steps import Step, run_steps
from trainer_svc.algorithm.step import StepResult, scored_passes, step
from trainer_svc.model.policy import Policy


def test_passes_without_a_gradient_are_computed_in_the_context_of_scoring_and_no_other(policy: Policy) -> None:
    """D has two minibatches, each scored under the start and the base model, and a canary; A has its canary alone."""
    for name, scored in (("a", 1), ("d", 5)):
        entered, gradients = list[bool](), list[bool]()

        @contextmanager
        def scoring(entered: list[bool] = entered) -> Generator[None]:
            entered.append(True)
            yield
            entered.append(False)

        def watched(steps: Step[StepResult], entered: list[bool] = entered, gradients: list[bool] = gradients) -> Step[StepResult]:
            request = next(steps)
            while True:
                count, has_gradient = len(entered), request.objective is not None
                result = yield request
                gradients.append(has_gradient)
                assert entered[count:] == ([] if has_gradient else [True, False])
                try:
                    request = steps.send(result)
                except StopIteration as finished:
                    return finished.value

        spec = DIFFERENT[name]
        one = watched(step(policy, begin(policy, spec), make_groups(7), spec, budget_tokens=BUDGET))
        ((_, result),) = run_steps(policy, [one], budget_tokens=BUDGET, scoring=scoring)
        assert isinstance(result, StepResult)
        assert (gradients.count(False), len(entered)) == (scored, 2 * scored) and 0 < result.metrics["score_s"] < 60
        assert scored_passes(spec.algorithm) == (scored - 1) / spec.algorithm.minibatches, "as the meter expects it"
