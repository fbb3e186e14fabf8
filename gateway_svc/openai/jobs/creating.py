"""Creates a job: submits its task file exactly once, although OpenAI's client retries requests without an idempotency key."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from common.client_api.asking import Door, UnknownHere
from common.client_api.errors import TaskRejected, Unanswered, rejection_reasons
from common.client_api.tenancy.files import Files
from common.client_api.training.jobs import preview, submit
from common.client_api.training.progress import read_status
from common.messages import AskTask, AskTasks, SpecAnswer, SubmitTask, TasksAnswer, TaskStatus
from common.spec import new_task_id
from gateway_svc.access import Caller
from gateway_svc.bodies import for_tenant, id_of
from gateway_svc.openai.errors import wrong_value
from gateway_svc.openai.jobs.job import Job, job_of
from gateway_svc.openai.jobs.reading import read_job
from gateway_svc.openai.jobs.request import (
    NO_ROWS,
    JobRequest,
    Origin,
    Rows,
    Values,
    check_files,
    hyperparameters_of,
    is_file_id,
    named,
    task_file,
)
from gateway_svc.openai.models import resolve
from gateway_svc.problems import Problem, rejected

COUNT_HEADER = "x-stainless-retry-count"
"""Header with the number of earlier attempts of the request."""
WINDOW_S = 120.0
"""Maximum age in seconds of an equal task that counts as submitted by an earlier attempt."""
LATEST = 20
"""Number of the tenant's latest tasks that are compared."""


@dataclass(frozen=True)
class Creation:
    """Creation of one job. `key`: its idempotency key."""

    caller: Caller
    timeout_s: float
    key: str | None = None
    is_repeated: bool = False
    """Whether the client reports that it sent the request before."""

    async def create(self, request: JobRequest) -> Job:
        """Create the job; return it as accepted, or as submitted if no scheduler answers. Raises: Problem; as `submit`."""
        hyperparameters = hyperparameters_of(request)
        check_files(request)
        origin, scaled = await self._origin(request.model), dict[str, JsonValue]()
        rows = await self._rows(request)
        try:
            counts = rows.training is not None and (hyperparameters.n_epochs != "auto" or "steps" not in request.marlaas)
            if hyperparameters.needs_defaults or counts:
                defaults = await self._completed(task_file(request, origin, {"steps": 1} if counts else {}))
                scaled = hyperparameters.scaled(defaults)
                if counts and rows.training is not None:
                    scaled["steps"] = hyperparameters.steps_for(rows.training, defaults)
            spec = for_tenant(task_file(request, origin, scaled, rows), self.caller.tenant)
            return await self._submitted(spec)
        except TaskRejected as error:
            raise named(rejected(error.reasons), request, origin, scaled) from None
        except Problem as problem:
            raise (named(problem, request, origin, scaled) if problem.code == "invalid" else problem) from None

    async def _origin(self, model: str) -> Origin:
        found = await resolve(self.caller.door, model)
        if found.adapter is None:
            return Origin(found.pool)
        if found.adapter.version == 0:
            raise wrong_value("model", "version 0 is where another task ended; name that version")
        return Origin(found.pool, found.adapter.task, found.adapter.version)

    async def _rows(self, request: JobRequest) -> Rows:
        """Numbers of rows of the job's files. Raises: Problem if a file is not the tenant's or cannot be used; as `Door.ask`."""
        if not is_file_id(request.training_file):
            return NO_ROWS
        validation = request.validation_file
        return Rows(
            await self._rows_of("training_file", request.training_file),
            None if validation is None else await self._rows_of("validation_file", validation),
        )

    async def _rows_of(self, param: str, file: str) -> int:
        try:
            found = await Files(self.caller.door).find(file, self.caller.tenant)
        except UnknownHere:
            raise wrong_value(param, "there is no such file") from None
        if found.state != "usable":
            raise wrong_value(param, f"the file is {found.state}: {found.reason}".removesuffix(": "))
        return found.rows

    async def _completed(self, spec: Values) -> Mapping[str, JsonValue]:
        """The task file completed with the defaults of its pool. Raises: TaskRejected; NoAnswer."""
        answer = await preview(self.caller.door, for_tenant(spec, self.caller.tenant), timeout_s=self.timeout_s)
        if answer.data.get("reasons"):
            raise TaskRejected(str(spec.get("name")), rejection_reasons(answer))
        found = answer.data.get("spec")
        assert isinstance(found, dict), "a preview without reasons has the task"
        return found

    async def _submitted(self, spec: Values) -> Job:
        tenant, name = str(spec["tenant"]), str(spec["name"])
        task = new_task_id(name, tenant) if self.key is None else id_of(tenant, self.key)
        job = SubmitTask(task=task, tenant=tenant, spec=spec)
        if self.is_repeated and self.key is None and (earlier := await submitted_before(self.caller.door, job)) is not None:
            return await read_job(self.caller.door, await read_status(self.caller.door, earlier.task))
        try:
            accepted = await submit(self.caller.door, spec, task, timeout_s=self.timeout_s)
        except Unanswered:
            return job_of(_unanswered(task, spec), spec)
        return await read_job(self.caller.door, await read_status(self.caller.door, accepted.task))


def _unanswered(task: str, spec: Values) -> TaskStatus:
    """Status of a task that is stored in NATS and not yet read by a scheduler."""
    steps, now_s = spec.get("steps"), time.time()
    return TaskStatus(
        tenant=str(spec["tenant"]),
        task=task,
        name=str(spec["name"]),
        pool=str(spec["pool"]),
        state="submitted",
        version=0,
        steps=steps if isinstance(steps, int) else 0,
        submitted_s=now_s,
        updated_s=now_s,
    )


async def submitted_before(door: Door, job: SubmitTask) -> TaskStatus | None:
    """The tenant's newest recent task with the same task file, or None. Raises: as `Door.ask`."""
    asked = AskTasks(sort="created", descending=True, most=LATEST)
    for status in (await door.ask("tasks", asked, TasksAnswer, tenant=job.tenant)).tasks:
        if time.time() - status.submitted_s > WINDOW_S:
            return None
        found = await door.ask("spec", AskTask(task=status.task), SpecAnswer, tenant=job.tenant)
        if found.submission == job.digest:
            return status
    return None
