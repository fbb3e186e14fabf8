"""Reading part of the SDK: tasks and their progress, and the deployment. Base of `Client`."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

from pydantic import JsonValue

from common.access.credentials import Credentials
from common.client_api.asking import UnknownHere
from common.client_api.deployment import read_environments, read_pools, read_replicas, read_troubles
from common.client_api.errors import ClientError, UnknownTask, check_id
from common.client_api.protocol import AnyDoor
from common.client_api.tenancy.tenants import read_audit
from common.client_api.training.download import Stored, read_usage, stored_by_task
from common.client_api.training.progress import (
    Failure,
    read_failures,
    read_samples,
    read_spec,
    read_status,
    read_steps,
    read_versions,
    read_why,
)
from common.messages import (
    AskTasks,
    AuditLine,
    EnvironmentsAnswer,
    PoolOffer,
    ReplicasOf,
    SamplesAnswer,
    StepOf,
    TaskStatus,
    TroubleOf,
    UsageAnswer,
    VersionsAnswer,
    WhyAnswer,
)
from common.messages.asks import TaskState
from marlaas.comparison import Comparison, Evaluated, compare, read_evaluations

T = TypeVar("T")


class Reader:
    """Reads one tenant's data, or all tenants'."""

    def __init__(self, door: AnyDoor) -> None:
        self._door = door

    @property
    def tenant(self) -> str | None:
        """Tenant whose tasks it reads; None for all."""
        return self._door.tenant

    @property
    def key(self) -> Credentials | None:
        """Key of this connection; None if NATS requires none, and over HTTP."""
        return self._door.key

    async def tasks(
        self, *, states: Sequence[TaskState] = (), pool: str | None = None, name: str | None = None, text: str | None = None
    ) -> list[TaskStatus]:
        """Tasks of the tenant, or of all, oldest first. `states`: matches any; `name`: full name; `text`: part of the id or name.

        Raises: NoAnswer.
        """
        wanted = AskTasks(states=[*states], pool=pool, name=name, text=text)
        return sorted(await self._door.tasks(wanted), key=lambda status: (status.submitted_s, status.task))

    async def status(self, task: str) -> TaskStatus:
        """Status of a task. Raises: WrongId; UnknownTask, suggesting a similar id; NoAnswer."""
        return await self._about(task, read_status)

    async def why(self, task: str) -> WhyAnswer:
        """Reason why the task waits, and the number that would have to change. Raises: as `status`."""
        return await self._about(task, read_why)

    async def spec(self, task: str) -> dict[str, JsonValue]:
        """The task as accepted, with defaults filled in. Raises: as `status`."""
        return await self._about(task, read_spec)

    async def steps(self, task: str, after: int = 0) -> list[StepOf]:
        """Optimizer steps that made versions above `after`, with metrics, times and groups. Raises: as `status`."""
        await self.status(task)
        return await read_steps(self._door, task, after)

    async def versions(self, task: str) -> VersionsAnswer:
        """Versions whose adapters are stored, the latest and the best. Raises: as `status`."""
        await self.status(task)
        return await read_versions(self._door, task)

    async def samples(self, task: str, step: int | None = None) -> SamplesAnswer:
        """Attempts stored for one step (None: the latest step with samples). Raises: as `status`; ClientError if there are none."""
        await self.status(task)
        try:
            return await read_samples(self._door, task, step)
        except UnknownHere as error:
            raise ClientError(str(error)) from None

    async def failures(self, task: str | None = None) -> list[Failure]:
        """Dead letters of one task, or of all, oldest first. Raises: WrongId; UnknownTask; NoAnswer."""
        if task is not None:
            await self.status(task)
        return await read_failures(self._door, task)

    async def evaluations(self, task: str) -> Evaluated:
        """Finished evaluations of the task. Raises: WrongId; UnknownTask; NoAnswer."""
        await self.status(task)
        return await read_evaluations(self._door, task)

    async def compare(self, first: str, second: str, *, protocol: str | None = None, version: str = "last") -> Comparison:
        """Compare two tasks of one tenant prompt by prompt. Raises: as `evaluations`; ClientError if they cannot be compared."""
        tenants = [(await self.status(task)).tenant for task in (first, second)]
        if tenants[0] != tenants[1]:
            raise ClientError(f"task {first} is of tenant '{tenants[0]}', {second} of '{tenants[1]}'; compare tasks of one tenant")
        return compare(await self.evaluations(first), await self.evaluations(second), protocol=protocol, version=version)

    async def audit(self, tenant: str | None = None, since: datetime | None = None) -> list[AuditLine]:
        """Audit log, oldest first, for owners and the operator. Raises: ClientError; NoAnswer."""
        return await read_audit(self._door, tenant, since)

    async def usage(self) -> UsageAnswer:
        """Tokens and stored bytes, by tenant and by task; for owners and the operator. Raises: ClientError; NoAnswer."""
        return await read_usage(self._door)

    async def stored(self) -> dict[str, Stored]:
        """Bytes stored by each task; tasks without blobs are absent. Raises: as `usage`."""
        return stored_by_task(await self.usage())

    async def environments(self) -> EnvironmentsAnswer:
        """Environments that a task may name, and sandboxes for code written by policies. Raises: NoAnswer."""
        return await read_environments(self._door)

    async def replicas(self) -> list[ReplicasOf]:
        """Live replicas by service and pool, with their load; with their names for the operator. Raises: NoAnswer."""
        return await read_replicas(self._door)

    async def troubles(self) -> list[TroubleOf]:
        """Processes of services that do not work; for the operator also those that died within the last hour, with the reason. Raises:
        NoAnswer."""
        return await read_troubles(self._door)

    async def pools(self) -> list[PoolOffer]:
        """Base models of the deployment. Raises: NoAnswer."""
        return await read_pools(self._door)

    async def _about(self, task: str, read: Callable[[AnyDoor, str], Awaitable[T]]) -> T:
        """Result of `read` for a task. Raises: as `status`; its UnknownTask suggests the most similar id."""
        check_id(task)
        try:
            return await read(self._door, task)
        except UnknownHere:
            raise UnknownTask.among(task, [status.task for status in await self.tasks()]) from None
