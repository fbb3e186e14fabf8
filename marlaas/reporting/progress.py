"""A task's progress, from its events: pure; shared by tables and plots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from pydantic import JsonValue

from common.evaluation import EvaluationReport
from common.messages import Event
from common.messages.status import PACE_STEPS, expected_end_s
from common.spec import TaskSpec

EDGE_STEPS = 5
"""Number of steps whose mean reward is shown: the first steps for the reward before, the last steps for the reward after."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class TrainedStep:
    """One trained step, from its event. Fields that the event lacks are None."""

    version: int
    at_s: float
    reward: float | None
    staleness_mean: float | None
    staleness_max: float | None
    sampled_tokens: int
    first_sampled_s: float | None
    batched_s: float | None
    trained_s: float | None
    failed_share: float | None = None
    first_admitted_s: float | None = None
    started_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Progress:
    """One task: its spec and its history."""

    task: str
    spec: TaskSpec
    state: str = "submitted"
    reason: str = ""
    accepted_s: float | None = None
    ended_s: float | None = None
    steps: list[TrainedStep] = field(default_factory=list[TrainedStep])
    evaluations: dict[str, dict[int, EvaluationReport]] = field(default_factory=dict[str, dict[int, EvaluationReport]])
    """Protocol → version → its evaluation on held-out prompts."""

    def apply(self, event: Event) -> None:
        """Add one event; a repeated step counts once."""
        if event.event == "step":
            step = step_of(event)
            if not self.steps or step.version > self.steps[-1].version:
                self.steps.append(step)
        elif event.event == "evaluation":
            if (report := EvaluationReport.in_event(event)) is not None:
                self.evaluations.setdefault(report.protocol, {})[report.version] = report
        elif event.event == "rejected" and self.accepted_s is not None:
            pass  # another submission under the same id
        elif event.event == "resent":
            pass  # about a message, not the task
        elif event.event in ("accepted", "resumed"):
            self.state = "running"
            self.accepted_s = self.accepted_s or event.at_s
        else:
            self.state = event.event
            self.reason = str(event.data.get("reason", "") or "")
            if event.event != "paused":
                self.ended_s = event.at_s

    @property
    def version(self) -> int:
        return self.steps[-1].version if self.steps else 0

    @property
    def rewards(self) -> list[float]:
        return [step.reward for step in self.steps if step.reward is not None]

    @property
    def reward_before(self) -> float | None:
        return fmean(self.rewards[:EDGE_STEPS]) if self.rewards else None

    @property
    def reward_after(self) -> float | None:
        return fmean(self.rewards[-EDGE_STEPS:]) if self.rewards else None

    @property
    def sampled_tokens(self) -> int:
        return sum(step.sampled_tokens for step in self.steps)

    @property
    def staleness(self) -> float | None:
        known = [step.staleness_mean for step in self.steps if step.staleness_mean is not None]
        return fmean(known) if known else None

    def tokens_per_s(self) -> float | None:
        """Sampled tokens per second of wall time over the latest steps; None before there are two."""
        recent = self.steps[-PACE_STEPS - 1 :]
        if len(recent) < 2 or recent[-1].at_s <= recent[0].at_s:
            return None
        return sum(step.sampled_tokens for step in recent[1:]) / (recent[-1].at_s - recent[0].at_s)

    def left_s(self) -> float | None:
        """Estimated seconds for the remaining steps at the latest pace; None if unknown."""
        end_s = expected_end_s([step.at_s for step in self.steps], self.spec.steps - self.version)
        return None if end_s is None or self.ended_s is not None else end_s - self.steps[-1].at_s


def step_of(event: Event) -> TrainedStep:
    """The step in an event's data; missing fields become None or 0."""
    data = event.data
    times = data.get("times")
    times = times if isinstance(times, dict) else {}
    metrics = data.get("metrics")
    return TrainedStep(
        version=int(_number(data.get("version")) or 0),
        at_s=event.at_s,
        reward=_number(data.get("reward")),
        staleness_mean=_number(data.get("staleness_mean")),
        staleness_max=_number(data.get("staleness_max")),
        sampled_tokens=int(_number(data.get("sampled_tokens")) or 0),
        first_sampled_s=_number(times.get("first_sampled_s")),
        batched_s=_number(times.get("batched_s")),
        trained_s=_number(times.get("trained_s")),
        failed_share=_number(data.get("failed_share")),
        first_admitted_s=_number(times.get("first_admitted_s")),
        started_s=_number(times.get("started_s")),
        metrics={name: value for name, given in metrics.items() if (value := _number(given)) is not None}
        if isinstance(metrics, dict)
        else {},
    )


def sparkline(values: list[float], width: int = 16) -> str:
    """`values` as at most `width` characters, each the mean of a section, scaled from minimum to maximum."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [round(number * len(values) / width) for number in range(width + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span > 0 else 0] for value in means)


def _number(value: JsonValue | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
