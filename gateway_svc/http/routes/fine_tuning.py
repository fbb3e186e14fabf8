"""OpenAI's routes of fine-tuning jobs."""

import re
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request

from common.messages import TaskStatus
from gateway_svc.access import Caller
from gateway_svc.bodies import IDEMPOTENCY_KEY
from gateway_svc.http.errors import Family
from gateway_svc.http.gateway import Acting, check_job, gateway_of, tenant_of
from gateway_svc.http.openai_family import OpenAIRoute, render, responses
from gateway_svc.http.routes.tasks import control_task, status_of
from gateway_svc.openai.jobs.creating import COUNT_HEADER, Creation
from gateway_svc.openai.jobs.job import Checkpoint, Job, JobEvent, Page
from gateway_svc.openai.jobs.reading import list_checkpoints, list_events, list_jobs, read_job
from gateway_svc.openai.jobs.request import GraderAnswer, GraderRequest, JobRequest, check_grader
from gateway_svc.problems import Problem

PATH = "/v1/fine_tuning"
MAX_PAGE = 100
_METADATA = re.compile(r"^metadata\[(?P<name>[^\]]{1,64})\]$")


class JobsRoute(OpenAIRoute):
    def has_parameter(self, name: str) -> bool:
        """Whether the route has this query parameter. The list of jobs also has `metadata` and `metadata[KEY]` with any key."""
        is_filter = name == "metadata" or _METADATA.match(name) is not None
        return super().has_parameter(name) or (is_filter and self.endpoint is read_jobs)


router = APIRouter(prefix=f"{PATH}/jobs", tags=["fine-tuning"], route_class=JobsRoute)
FAMILY = Family(router, render, (PATH,))
graders = APIRouter(prefix=f"{PATH}/alpha/graders", tags=["fine-tuning"], route_class=OpenAIRoute)
GRADERS = Family(graders)
JobId = Annotated[str, Path(max_length=63)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
After = Annotated[str | None, Query(max_length=100)]


@router.post("", responses=responses(Job, 400, 401, 402, 403, 404, 409, 413, 415, 429, 503))
async def create_job(
    request: Request,
    caller: Acting,
    body: JobRequest,
    idempotency_key: Annotated[str | None, Header(pattern=IDEMPOTENCY_KEY)] = None,
) -> Job:
    """Submit a task. Answered once it is accepted or rejected, or stored while no scheduler answers."""
    check_job(caller, "submit")
    await gateway_of(request).limiter.check_spending(tenant_of(caller))
    is_repeated = request.headers.get(COUNT_HEADER, "0") != "0"
    return await Creation(caller, gateway_of(request).settings.submit_timeout_s, idempotency_key, is_repeated).create(body)


@router.get("", responses=responses(Page[Job], 400, 401, 403, 429, 503))
async def read_jobs(request: Request, caller: Acting, after: After = None, limit: Limit = 20) -> Page[Job]:
    """Jobs, newest first. `metadata[KEY]=VALUE`: only those with this entry; `metadata=null`: only those without metadata."""
    return await list_jobs(caller.door, after, limit, _wanted(request))


@router.get("/{job}", responses=responses(Job, 401, 403, 404, 429, 503))
async def retrieve_job(caller: Acting, job: JobId) -> Job:
    """A job's state."""
    return await read_job(caller.door, await status_of(caller, job))


@router.get("/{job}/events", responses=responses(Page[JobEvent], 400, 401, 403, 404, 429, 503))
async def read_job_events(caller: Acting, job: JobId, after: After = None, limit: Limit = 20) -> Page[JobEvent]:
    """Events of a job, the newest first."""
    return await list_events(caller.door, await _known(caller, job), after, limit)


@router.get("/{job}/checkpoints", responses=responses(Page[Checkpoint], 400, 401, 403, 404, 429, 503))
async def read_job_checkpoints(caller: Acting, job: JobId, after: After = None, limit: Limit = 10) -> Page[Checkpoint]:
    """Stored versions of a job, the latest first."""
    return await list_checkpoints(caller.door, await _known(caller, job), after, limit)


@router.post("/{job}/cancel", responses=responses(Job, 401, 403, 404, 409, 429, 503))
async def cancel_job(caller: Acting, job: JobId) -> Job:
    """End a job; its checkpoints stay."""
    return await read_job(caller.door, await control_task(caller, "cancel", job, None))


@router.post("/{job}/pause", responses=responses(Job, 401, 403, 404, 409, 429, 503))
async def pause_job(caller: Acting, job: JobId) -> Job:
    """Admit no new work of a job; work in flight finishes."""
    return await read_job(caller.door, await control_task(caller, "pause", job, None))


@router.post("/{job}/resume", responses=responses(Job, 401, 403, 404, 409, 429, 503))
async def resume_job(caller: Acting, job: JobId) -> Job:
    """Continue a paused job."""
    return await read_job(caller.door, await control_task(caller, "resume", job, None))


@graders.post("/validate", responses=responses(GraderAnswer, 400, 401, 403, 413, 415, 503))
async def validate_grader(caller: Acting, body: GraderRequest) -> GraderAnswer:
    """Whether a grader can be used; it is returned as it was given."""
    del caller
    check_grader(body.grader, "grader")
    return GraderAnswer(grader=body.grader)


async def _known(caller: Caller, job: str) -> str:
    """The job's task id. Raises: Problem if the caller has no such job."""
    found: TaskStatus = await status_of(caller, job)
    return found.task


def _wanted(request: Request) -> dict[str, str] | None:
    """Metadata filter of a list: None for all, empty for jobs without metadata. Raises: Problem."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if match := _METADATA.match(name):
            found[match["name"]] = value
    said = request.query_params.get("metadata")
    if said not in (None, "null"):
        raise Problem(400, "Invalid request", "metadata: it is 'null', or give metadata[KEY]=VALUE", "invalid_value")
    return found if found or said == "null" else None
