"""Offer: what the deployment has for a task, and why it may not do."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.messages import ReplicaReport, is_file, is_own
from common.pools import Pools, objections, objections_to_name
from common.spec import TaskSpec
from scheduler_svc.base.context import HandlerContext
from scheduler_svc.training.decisions.replica_support import sampler_objections
from scheduler_svc.training.intake.environment_resolution import family_of


@dataclass(frozen=True)
class Catalog:
    """The deployment's base models, the environments that live replicas serve, and these replicas."""

    pools: Pools
    families: set[str]
    replicas: Sequence[ReplicaReport] = ()

    @classmethod
    def of(cls, context: HandlerContext) -> "Catalog":
        return cls(context.pools, context.replicas.families, context.replicas.reports)

    def objections(self, spec: TaskSpec) -> list[str]:
        """Reasons to reject the task; empty when none is known."""
        found = [*objections(spec, self.pools), *sampler_objections(spec, self.replicas)]
        return [*found, *self.objections_to_environment(spec.environment.name)]

    def objections_to_pool(self, name: str) -> list[str]:
        """Of those, what the name alone shows."""
        return objections_to_name(name, self.pools)

    def objections_to_environment(self, name: str) -> list[str]:
        if not self.families or is_own(name) or is_file(name) or family_of(name, self.families) is not None:
            return []
        return [f"environment.name: no environment '{name}' here; `marlaas envs` lists those installed"]
