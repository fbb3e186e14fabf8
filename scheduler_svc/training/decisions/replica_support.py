"""Replica support: what a task asks for that the live replicas of its pool cannot do.

A pool without live replicas objects to nothing: its sampler checks the arguments at the first prompt, and voids the group with the reason.
"""

from collections.abc import Iterable, Iterator

from common.messages import ReplicaReport
from common.spec import TaskSpec, unknown_arguments


def tool_objection(pool: str, reports: Iterable[ReplicaReport]) -> str | None:
    """Why a task whose environment has tools cannot be sampled in `pool`; None where it can, or no live sampler knows."""
    if any(report.service == "rollout" and report.pool == pool and report.takes_answers is False for report in reports):
        return f"it has tools, and the chat template of pool '{pool}' takes no answers of tools; choose another pool, or list none"
    return None


def sampler_objections(spec: TaskSpec, reports: Iterable[ReplicaReport]) -> Iterator[str]:
    """Reasons why a live sampler of the task's pool cannot sample as `sampling` says."""
    complaints: set[str] = set()
    for report in reports:
        if report.service == "rollout" and report.pool == spec.pool:
            complaints.update(unknown_arguments(spec.sampling.template, report.template_variables))
    yield from sorted(complaints)
