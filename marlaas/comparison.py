"""Evaluations of tasks, for users, and the comparison of two tasks prompt by prompt. `marlaas.client` re-exports them."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.client_api.errors import ClientError
from common.client_api.protocol import AnyDoor
from common.client_api.training.progress import read_evaluations as read_finished
from common.evaluation import Difference, EvaluationReport, paired_difference
from common.messages import from_json
from common.spec import MAIN_PROTOCOL

FIELDS = {
    "environment": "environment.name",
    "options": "environment.options or evaluation.options",
    "weights": "environment.weights",
    "seed": "evaluation.seed",
    "temperature": "evaluation.temperature",
}
"""Field of `Asked` → where a task sets it."""
DIGESTS = ("options", "weights")
"""Fields of `Asked` that contain only a digest of the value."""


@dataclass(frozen=True)
class Evaluated:
    """Evaluations of one task, by protocol and version."""

    task: str
    reports: Sequence[EvaluationReport]

    @property
    def deciding_protocol(self) -> str:
        return next((report.protocol for report in self.reports if report.decides_by), MAIN_PROTOCOL)

    def best(self, protocol: str) -> EvaluationReport | None:
        """Report of the best version, by the rules of `keep.best`; ties: the earlier version. None if no version has a reward."""

        def worth(report: EvaluationReport) -> tuple[float, float, int]:
            reward = report.reward if report.reward is not None else float("-inf")
            bound = report.interval[0] if report.interval is not None and report.decides_by != "mean" else float("-inf")
            return (reward if report.decides_by == "mean" else bound, reward, -report.version)

        return max((report for report in self._of(protocol) if report.reward is not None), key=worth, default=None)

    def last(self, protocol: str) -> EvaluationReport | None:
        return max((report for report in self._of(protocol) if report.reward is not None), key=lambda report: report.version, default=None)

    def chosen(self, protocol: str, version: str) -> EvaluationReport:
        """Report of `version`: a number, "last", or "best" by the deciding protocol. Raises: ClientError if there is none."""
        if not (names := sorted({report.protocol for report in self.reports})):
            raise ClientError(f"task {self.task} has no evaluation; set evaluation.every, or wait for its first")
        if protocol not in names:
            raise ClientError(f"task {self.task} has no protocol '{protocol}'; there are: {', '.join(names)}")
        if version == "last":
            found = self.last(protocol)
        else:
            best = self.best(self.deciding_protocol) if version == "best" else None
            wanted = best.version if best else int(version) if version.isdecimal() else None
            found = next((report for report in self._of(protocol) if report.version == wanted), None)
        if found is None:
            known = ", ".join(str(report.version) for report in self._of(protocol))
            raise ClientError(f"task {self.task}: protocol '{protocol}' has no version '{version}'; use best, last or one of {known}")
        return found

    def _of(self, protocol: str) -> list[EvaluationReport]:
        return sorted((report for report in self.reports if report.protocol == protocol), key=lambda report: report.version)


@dataclass(frozen=True)
class Comparison:
    """Two tasks' results at the same prompts."""

    tasks: tuple[str, str]
    reports: tuple[EvaluationReport, EvaluationReport]
    difference: Difference
    """Rewards of the second task minus those of the first."""

    @property
    def verdict(self) -> str:
        interval = self.difference.interval
        if interval is None:
            return "too few prompts to say"
        if interval[0] <= 0 <= interval[1]:
            return "no difference is shown"
        return f"{self.tasks[interval[0] > 0]} is better"


async def read_evaluations(door: AnyDoor, task: str) -> Evaluated:
    """Finished evaluations of the task. Raises: UnknownHere; ClientError; NoAnswer."""
    return Evaluated(task, [from_json(EvaluationReport, one.report) for one in await read_finished(door, task)])


def compare(first: Evaluated, second: Evaluated, *, protocol: str | None = None, version: str = "last") -> Comparison:
    """Compare two tasks' versions at the prompts that both answered. `protocol`: None: the deciding protocol of `first`.

    Raises: ClientError if a task has no such version or protocol, or if the two evaluations differ in prompts, rewards or sampling.
    """
    protocol = protocol or first.deciding_protocol
    before, after = first.chosen(protocol, version), second.chosen(protocol, version)
    _check_same_questions(first.task, before, second.task, after)
    ours, theirs = before.rewards_by_prompt(), after.rewards_by_prompt()
    prompts = sorted(ours.keys() & theirs.keys())
    resolution = 1 / min(before.attempts, after.attempts) if before.binary and after.binary else None
    pairs = [[rewards[prompt] for prompt in prompts] for rewards in (ours, theirs)]
    difference = paired_difference(*pairs, resolution=resolution)
    if difference is None:
        raise ClientError(f"tasks {first.task} and {second.task} have no prompt in common that both have a scored attempt at")
    return Comparison((first.task, second.task), (before, after), difference)


def _check_same_questions(first: str, before: EvaluationReport, second: str, after: EvaluationReport) -> None:
    """Raises: ClientError, naming the first field that makes the results incomparable."""
    for name, field in FIELDS.items():
        ours, theirs = getattr(before.asked, name), getattr(after.asked, name)
        if ours != theirs:
            values = "differ" if name in DIGESTS else f"is {ours!r} in {first} and {theirs!r} in {second}"
            raise ClientError(
                f"tasks {first} and {second} cannot be compared by protocol '{before.protocol}': {field} {values}; "
                "only equal prompts, rewards and temperatures can be paired"
            )
