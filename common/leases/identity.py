"""An executor's process, by name."""

from dataclasses import dataclass

from common import streams
from common.accelerators import executor_name


@dataclass(frozen=True)
class Identity:
    """A process that computes on an accelerator."""

    accelerator: str
    service: str
    """rollout or trainer."""
    pool: str
    replica: str
    """Name of the process; another after each restart, unless the deployment gives it one."""

    @property
    def executor(self) -> str:
        return executor_name(self.service, self.pool)

    @property
    def orders(self) -> str:
        """Subject of its orders."""
        return streams.lease_order(self.accelerator, self.executor)
