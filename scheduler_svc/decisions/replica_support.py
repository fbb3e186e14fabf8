"""Replica support: what a task asks for that the live replicas of its pool cannot do.

A pool without live replicas objects to nothing: its sampler checks the arguments at the first prompt, and voids the group with the reason.
"""

from collections.abc import Iterable, Iterator

from common.messages import ReplicaReport
from common.spec import TaskSpec, unknown_arguments


def sampler_objections(spec: TaskSpec, reports: Iterable[ReplicaReport]) -> Iterator[str]:
    """Reasons why a live sampler of the task's pool cannot sample as `sampling` says."""
    complaints: set[str] = set()
    for report in reports:
        if report.service != "rollout" or report.pool != spec.pool:
            continue
        if report.template_variables is not None:
            complaints.update(unknown_arguments(spec.sampling.template, report.template_variables))
        else:  # it would sample without them
            complaints.update(
                f"sampling.{field}: rollout replica '{report.replica}' of pool '{spec.pool}' is of an older release that does not know it; "
                "upgrade the replica"
                for field, value in (("template", spec.sampling.template), ("stop", spec.sampling.stop))
                if value
            )
    yield from sorted(complaints)
