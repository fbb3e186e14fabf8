"""Tasks: submission, listing, state and control."""

import re
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import BaseModel, JsonValue, ValidationError

from common.client_api.asking import UnknownHere, answer_to
from common.client_api.errors import NoAnswer, TaskRejected, Unanswered
from common.client_api.protocol import Verb
from common.client_api.training.jobs import control_job, delete_task, preview, submit
from common.client_api.training.progress import read_status, read_why
from common.messages import AskTask, AskTasks, Event, SpecAnswer, StatusAnswer, SubmitTask, TasksAnswer, TaskStatus, WhyAnswer
from common.messages.asks import TaskState
from common.spec import TASK_ID_PATTERN
from common.task_states import ENDED
from gateway_svc.access import Caller
from gateway_svc.bodies import IDEMPOTENCY_KEY, JSON, TOML, for_tenant, id_of, read_task
from gateway_svc.http.errors import COMMON, Family, responses
from gateway_svc.http.gateway import Acting, check_job, gateway_of
from gateway_svc.http.strict import Flag, StrictRoute, check_content_type
from gateway_svc.problems import FieldError, Problem, invalid, not_found, rejected, wrong_fields_of

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], route_class=StrictRoute)
FAMILY = Family(router)

CONTROL_S = 5.0
"""Seconds to wait until a job about a task takes effect."""
DELETE_S = 60.0
TaskId = Annotated[str, Path(max_length=63, examples=["gcd-3f9a1c22d4e0"])]
Sort = Literal["created", "-created", "reward", "-reward", "state", "-state", "id", "-id"]
Text = Annotated[str | None, Query(min_length=1, max_length=100, pattern=r"^[^\x00]+$")]
Reason = Annotated[str | None, Query(max_length=1000, pattern=r"^[^\x00]*$", description="Text kept with the task.")]
TASK_FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/TaskSpec"}},
            TOML: {"schema": {"type": "string", "description": "The same as a task file."}},
        },
    }
}


class Submitted(BaseModel):
    """A submission that NATS has stored, and that no scheduler has answered yet."""

    task: str
    state: Literal["submitted"] = "submitted"


class Freed(BaseModel):
    """A task that is deleted."""

    task: str
    freed_bytes: int


@router.post(
    "",
    status_code=201,
    response_model=TaskStatus | Event,
    openapi_extra=TASK_FILE,
    responses={
        200: {
            "model": TaskStatus | Event,
            "description": "The event `previewed`; or the task that this key has submitted before.",
        },
        202: {"model": Submitted, "description": "NATS has the task, and no scheduler has answered yet; see Location."},
        **COMMON,
        **responses(402, 409, 413, 415),
    },
)
async def submit_task(
    request: Request,
    response: Response,
    caller: Acting,
    dry_run: Flag = False,
    idempotency_key: Annotated[str | None, Header(pattern=IDEMPOTENCY_KEY)] = None,
) -> Any:
    """Submit a task file, as JSON or TOML, and wait until it is accepted or rejected."""
    media_type = check_content_type(request, JSON, TOML)
    check_job(caller, "preview" if dry_run else "submit")
    spec = await _given(request, caller, media_type)
    if dry_run:
        response.status_code = 200
        return await preview(caller.door, spec, timeout_s=gateway_of(request).settings.submit_timeout_s)
    task = id_of(str(spec["tenant"]), idempotency_key) if idempotency_key is not None else None
    return await _submitted(request, response, caller, spec, task)


@router.put(
    "/{task}",
    status_code=201,
    response_model=TaskStatus,
    openapi_extra=TASK_FILE,
    responses={
        200: {"model": TaskStatus, "description": "The task that was submitted before with this id and this task file."},
        202: {"model": Submitted, "description": "NATS has the task, and no scheduler has answered yet; see Location."},
        **COMMON,
        **responses(402, 409, 413, 415),
    },
)
async def submit_task_as(request: Request, response: Response, caller: Acting, task: TaskId) -> Any:
    """Submit a task file under an id made by the client. Repeating it is harmless."""
    media_type = check_content_type(request, JSON, TOML)
    check_job(caller, "submit")
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        raise invalid(FieldError("task", "small letters, digits and hyphens, 63 at most, a letter or digit first and last"))
    return await _submitted(
        request,
        response,
        caller,
        await _given(request, caller, media_type),
        task,
    )


async def _given(request: Request, caller: Caller, media_type: str) -> dict[str, JsonValue]:
    """The task file of the request, with its tenant. Raises: Problem."""
    return for_tenant(await read_task(await request.body(), media_type, request.state.place), caller.tenant)


async def _submitted(request: Request, response: Response, caller: Caller, spec: dict[str, JsonValue], task: str | None) -> Any:
    """Submit a task and return the answer. `task`: id that a repeated request has too; None: a new id."""
    if task is not None and (earlier := await _earlier(caller, SubmitTask(task=task, tenant=str(spec["tenant"]), spec=spec))) is not None:
        response.status_code = 200
        return earlier
    await gateway_of(request).limiter.check_spending(str(spec["tenant"]))
    impatient = caller.door.of(caller.door.tenant, patience_s=0)  # the job must be stored without delay even if no scheduler answers
    try:
        task = (await submit(impatient, spec, task, timeout_s=gateway_of(request).settings.submit_timeout_s)).task
    except Unanswered as error:
        location = {"Location": _path(request, error.task), "Retry-After": "2"}
        return Response(Submitted(task=error.task).model_dump_json(), 202, location, JSON)
    except TaskRejected:
        if task is not None:  # another request with this key or id was faster
            await _earlier(caller, SubmitTask(task=task, tenant=str(spec["tenant"]), spec=spec))
        raise
    response.headers["Location"] = _path(request, task)
    return await status_of(caller, task)


async def _earlier(caller: Caller, job: SubmitTask) -> TaskStatus | None:
    """The task already submitted with this id, or None. Raises: Problem if it is a different task or was rejected.

    None also while no scheduler answers: the job is then stored, and the scheduler compares the tasks later.
    """
    try:
        found = await caller.door.ask("spec", AskTask(task=job.task), SpecAnswer, tenant=job.tenant)
        status = (await caller.door.ask("status", AskTask(task=job.task), StatusAnswer, tenant=job.tenant)).status
    except (UnknownHere, NoAnswer):
        return None
    if found.submission != job.digest:
        raise Problem(409, "Conflict", "this id or idempotency key has submitted another task", "idempotency_conflict")
    if status.state == "rejected":
        raise rejected([status.reason])
    return status


def _path(request: Request, task: str) -> str:
    return f"{request.scope.get('root_path', '')}/v1/tasks/{task}"


@router.get("", responses=COMMON)
async def list_tasks(
    caller: Acting,
    state: Annotated[list[TaskState], Query(description="Any of these; repeat it for several.", max_length=7)] = [],  # noqa: B006
    pool: Text = None,
    name: Text = None,
    text: Text = None,
    sort: Sort = "-created",
    cursor: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> TasksAnswer:
    """List tasks that match every filter, paginated. `name`: whole name; `text`: part of id or name."""
    order = {"sort": sort.removeprefix("-"), "descending": sort.startswith("-"), "most": limit, "cursor": cursor}
    try:
        asked = AskTasks.model_validate({"states": state, "pool": pool, "name": name, "text": text, **order})
    except ValidationError as error:
        raise wrong_fields_of(error.errors()) from None
    return await caller.door.ask("tasks", asked, TasksAnswer)


@router.get("/{task}", responses=COMMON | responses(404))
async def read_task_status(caller: Acting, task: TaskId) -> TaskStatus:
    """Read a task's state."""
    return await status_of(caller, task)


@router.get("/{task}/spec", responses=COMMON | responses(404))
async def read_task_spec(caller: Acting, task: TaskId) -> SpecAnswer:
    """Read the task file as accepted, completed by defaults."""
    check_task_id(task)
    return await caller.door.ask("spec", AskTask(task=task), SpecAnswer)


@router.get("/{task}/why", responses=COMMON | responses(404))
async def read_task_why(caller: Acting, task: TaskId) -> WhyAnswer:
    """Read what a task waits for, and the number that would have to change."""
    check_task_id(task)
    return await read_why(caller.door, task)


@router.post("/{task}/cancel", responses=COMMON | responses(404, 409))
async def cancel_task(caller: Acting, task: TaskId, reason: Reason = None) -> TaskStatus:
    """End a task; trained versions stay."""
    return await control_task(caller, "cancel", task, reason)


@router.post("/{task}/pause", responses=COMMON | responses(404, 409))
async def pause_task(caller: Acting, task: TaskId, reason: Reason = None) -> TaskStatus:
    """Admit no new work of a task; work in flight finishes."""
    return await control_task(caller, "pause", task, reason)


@router.post("/{task}/resume", responses=COMMON | responses(404, 409))
async def resume_task(caller: Acting, task: TaskId, reason: Reason = None) -> TaskStatus:
    """Continue a paused task."""
    return await control_task(caller, "resume", task, reason)


@router.delete("/{task}", responses=COMMON | responses(404, 409))
async def remove_task(caller: Acting, task: TaskId) -> Freed:
    """Delete an ended task: adapters, checkpoints, messages and rows. Its usage is kept."""
    check_job(caller, "delete")
    return Freed(task=task, freed_bytes=await delete_task(caller.door, await status_of(caller, task), timeout_s=DELETE_S))


async def status_of(caller: Caller, task: str) -> TaskStatus:
    """Status of a task. Raises: Problem (404) for unknown and for malformed ids."""
    check_task_id(task)
    return await read_status(caller.door, task)


def check_task_id(task: str) -> None:
    """Raises: Problem (404) for an id that no task can have."""
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        raise not_found()


async def control_task(caller: Caller, verb: Verb, task: str, reason: str | None) -> TaskStatus:
    """Status of the task once the job took effect, or after CONTROL_S seconds."""
    check_job(caller, verb)
    status = await status_of(caller, task)
    aim = {"cancel": "cancelled", "pause": "paused", "resume": "running"}[verb]
    out = control_job(verb, status, reason or "")
    if status.state == aim:
        return status

    def is_answer(event: Event) -> bool:
        return event.event in ENDED or event.event == {"resume": "resumed"}.get(verb, aim)

    with suppress(NoAnswer):  # the job is stored: a later request shows its effect
        await answer_to(caller.door, out, status.tenant, task, is_answer, CONTROL_S)
    return await status_of(caller, task)
