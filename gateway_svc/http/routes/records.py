"""Results of a task: events, steps, evaluations, usage, and dead letters."""

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response

from common.client_api.asking import UnknownHere
from common.client_api.training.following import follow
from common.client_api.training.jobs import resend
from common.client_api.training.progress import read_failure
from common.messages import (
    AskEvaluations,
    AskEvents,
    AskFailures,
    AskSamples,
    AskSteps,
    AskUsage,
    EvaluationsAnswer,
    EventsAnswer,
    FailuresAnswer,
    SamplesAnswer,
    StepsAnswer,
    TaskUsage,
    UsageAnswer,
)
from common.messages.asks import MAX_NUMBER, MAX_VERSION
from common.spec import NAME_PATTERN, TASK_ID_PATTERN
from gateway_svc.access import Caller
from gateway_svc.http.errors import COMMON, Family, responses
from gateway_svc.http.event_stream import Ends, EventStream, Sse
from gateway_svc.http.gateway import Acting, check_job, check_question, gateway_of, token_texts
from gateway_svc.http.routes.tasks import TaskId, check_task_id, status_of
from gateway_svc.http.strict import StrictRoute
from gateway_svc.problems import FieldError, Problem, invalid, not_found
from gateway_svc.samples import Samples, samples_of

router = APIRouter(prefix="/v1/tasks/{task}", tags=["tasks"], route_class=StrictRoute)
FAMILY = Family(router)
of_all = APIRouter(prefix="/v1", tags=["tasks"], route_class=StrictRoute)
OF_ALL = Family(of_all)

RESEND_S = 60.0
STREAM = "text/event-stream"
OF_TASK = responses(400, 401, 403, 404, 429, 503)
WAIT_S = 15.0
AfterNumber = Annotated[int, Query(ge=0, le=MAX_NUMBER, description="Number of the last that the client has.")]
OneTask = Annotated[
    str | None, Query(pattern=TASK_ID_PATTERN, description="Only events of this task; `none`: answers to jobs about no task.")
]
AfterVersion = Annotated[int, Query(ge=0, le=MAX_VERSION, description="The last version that the client has.")]


@router.get(
    "/events",
    response_model=EventsAnswer,
    responses={
        200: {"content": {STREAM: {"schema": {"type": "string"}}}, "description": "A page, or a stream."},
        **OF_TASK,
        **responses(406),
    },
)
async def read_events(
    request: Request,
    caller: Acting,
    task: TaskId,
    after: AfterNumber = 0,
    accept: Annotated[str, Header(max_length=1000)] = "*/*",
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response | EventsAnswer:
    """Read events after a number: one page, or with `Accept: text/event-stream` all as they come.

    A stream's ids are event numbers: with `Last-Event-ID` any replica continues after that event. It ends after the last event of an
    ended task.
    """
    if STREAM in accept:
        await status_of(caller, task)
        number = _number(last_event_id) if last_event_id is not None else after
        return EventStream(_events(caller, task, number), Ends(caller, gateway_of(request).drain, is_resumable=True))
    if not any(kind in accept for kind in ("*/*", "application/*", "application/json")):
        raise Problem(406, "Not acceptable", f"there are application/json and {STREAM}", "not_acceptable")
    check_task_id(task)
    page = await caller.door.ask("events", AskEvents(task=task, after=after), EventsAnswer)
    if not page.last:  # events of a deleted task remain
        await status_of(caller, task)
    return page


async def _events(caller: Caller, task: str, number: int) -> AsyncGenerator[Sse]:
    async for event in follow(caller.door, [task], from_now=False, after=number):
        place = None if event.number is None else str(event.number)
        yield Sse(event.model_dump_json(), event.event, place)


def _number(last_event_id: str) -> int:
    if not (last_event_id.isascii() and last_event_id.isdigit() and int(last_event_id) <= MAX_NUMBER):
        raise invalid(FieldError("Last-Event-ID", "it is the number of an event"))
    return int(last_event_id)


@router.get("/steps", responses=OF_TASK)
async def read_steps(
    caller: Acting, task: TaskId, after: AfterVersion = 0, every: Annotated[int, Query(ge=1, le=MAX_VERSION)] = 1
) -> StepsAnswer:
    """List optimizer steps, paginated. `every`: only each nth step, the first and the last trained."""
    await status_of(caller, task)
    return await caller.door.ask("steps", AskSteps(task=task, after=after, every=every), StepsAnswer)


@router.get("/evaluations", responses=OF_TASK)
async def read_evaluations(
    caller: Acting,
    task: TaskId,
    version: AfterVersion = 0,
    protocol: Annotated[str | None, Query(max_length=63, pattern=NAME_PATTERN)] = None,
) -> EvaluationsAnswer:
    """List finished evaluations, paginated: after that of `version` by `protocol`; without a protocol, from `version` on."""
    await status_of(caller, task)
    return await caller.door.ask("evaluations", AskEvaluations(task=task, version=version, protocol=protocol), EvaluationsAnswer)


@router.get("/samples", responses=OF_TASK)
async def read_samples(
    request: Request,
    caller: Acting,
    task: TaskId,
    step: Annotated[
        int | None, Query(ge=1, le=MAX_VERSION, description="Version that the step made; default: the latest with samples.")
    ] = None,
) -> Samples:
    """Read the attempts that one step keeps (`keep.samples`), with log-probabilities of sampled tokens."""
    await status_of(caller, task)
    try:
        answer = await caller.door.ask("samples", AskSamples(task=task, step=step), SamplesAnswer)
    except UnknownHere as error:  # the caller owns the task, so the error may list its steps with samples
        raise not_found(str(error)) from None
    return samples_of(answer, await token_texts(gateway_of(request), answer))


@router.get("/usage", responses=OF_TASK)
async def read_usage_of_task(caller: Acting, task: TaskId) -> TaskUsage:
    """Read tokens that a task consumed and bytes that it stores."""
    check_question(caller, "usage")
    await status_of(caller, task)
    cursor = task[:-1].rstrip("-") or None  # an id shortly before this one
    while True:
        page = await caller.door.ask("usage", AskUsage(cursor=cursor), UsageAnswer)
        found = next((one for one in page.tasks if one.task == task), None)
        if found is not None:
            return found
        cursor = page.cursor
        if cursor is None or cursor > task:
            return TaskUsage(task=task)


@router.get("/failures", responses=OF_TASK)
async def read_failures(caller: Acting, task: TaskId, after: AfterNumber = 0) -> FailuresAnswer:
    """List dead letters of a task, paginated."""
    await status_of(caller, task)
    return await caller.door.ask("failures", AskFailures(task=task, after=after), FailuresAnswer)


@router.post("/failures/{letter}/resend", status_code=204, responses=OF_TASK)
async def resend_message(caller: Acting, task: TaskId, letter: Annotated[int, Path(ge=1, le=MAX_NUMBER)]) -> None:
    """Resend a dead letter's message. Repeating it is harmless."""
    check_job(caller, "resend")
    await status_of(caller, task)
    await _resend(caller, letter, task)


async def _resend(caller: Caller, letter: int, task: str | None = None) -> None:
    """Resend a dead letter. Raises: Problem if it does not exist or belongs to another task; as `resend`."""
    page = await caller.door.ask("failures", AskFailures(task=task, after=letter - 1), FailuresAnswer)
    if not page.failures or page.failures[0].letter != letter:
        raise not_found()
    await resend(caller.door, await read_failure(caller.door, letter), timeout_s=RESEND_S)


@of_all.get("/events", response_class=Response, responses={200: {"content": {STREAM: {}}}, **COMMON})
async def read_all_events(request: Request, caller: Acting, task: OneTask = None) -> Response:
    """Stream the future events of every task, or of one. The event `listening` says that none is missed from now on.

    It cannot be resumed: an event's `number` and a task's own events say what was missed.
    """
    return EventStream(_all_events(caller, task), Ends(caller, gateway_of(request).drain, is_resumable=True))


async def _all_events(caller: Caller, task: str | None) -> AsyncGenerator[Sse]:
    async with caller.door.listening(caller.door.tenant, task) as live:
        yield Sse("{}", "listening")
        while True:
            event = await caller.door.next_event(live, WAIT_S)
            if event is not None:
                yield Sse(event.model_dump_json(), event.event)


@of_all.get("/failures", responses=COMMON)
async def read_all_failures(caller: Acting, after: AfterNumber = 0) -> FailuresAnswer:
    """List all dead letters, those of jobs included, paginated."""
    return await caller.door.ask("failures", AskFailures(after=after), FailuresAnswer)


@of_all.post("/failures/{letter}/resend", status_code=204, responses=COMMON | responses(404))
async def resend_any_message(caller: Acting, letter: Annotated[int, Path(ge=1, le=MAX_NUMBER)]) -> None:
    """Resend a dead letter's message. Repeating it is harmless."""
    check_job(caller, "resend")
    await _resend(caller, letter)
