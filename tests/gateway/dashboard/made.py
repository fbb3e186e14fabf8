"""Steps, statuses and evaluations for view models."""

from typing import Any

from common.messages import EvaluationOf, StepDurations, StepOf, StepTimes, TaskStatus


def status(task: str = "a", **changes: Any) -> TaskStatus:
    base = {"tenant": "acme", "task": task, "name": task, "pool": "tiny", "state": "running", "version": 2, "steps": 4}
    return TaskStatus(**(base | {"submitted_s": 1.0, "updated_s": 2.0} | changes))


def step(version: int, **changes: Any) -> StepOf:
    """Admitted at 10 × version; sampling 4 s, waits 1 and 2 s, training 3 s, publishing 0.5 s."""
    begun = 10.0 * version
    times = StepTimes(
        first_admitted_s=begun,
        first_sampled_s=begun + 1,
        last_sampled_s=begun + 4,
        batched_s=begun + 5,
        started_s=begun + 7,
        trained_s=begun + 10,
        advanced_s=begun + 10.5,
    )
    durations = StepDurations(sampling_s=4, wait_for_batch_s=1, wait_for_trainer_s=2, training_s=3, publishing_s=0.5)
    base = {
        "version": version,
        "state": "trained",
        "reward": version / 10,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "sampled_tokens": 100,
        "trained_tokens": 90,
        "groups": [version],
        "metrics": {"entropy": 1.0},
        "times": times,
        "durations": durations,
    }
    return StepOf(**(base | changes))


def evaluation(version: int, protocol: str = "main", reward: float = 0.5, interval: Any = (0.4, 0.6)) -> EvaluationOf:
    report = {"reward": reward, "interval": list(interval) if interval else None}
    return EvaluationOf(version=version, protocol=protocol, finished_s=1.0, is_best=False, report=report)
