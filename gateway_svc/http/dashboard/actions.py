"""Dashboard forms that change tasks and dead letters."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import JsonValue

from common.client_api.errors import TaskRejected, Unanswered, rejection_reasons
from common.client_api.protocol import Verb
from common.client_api.training.jobs import control, delete_task, preview, resend, submit
from common.client_api.training.progress import read_failure, read_status
from common.messages import Event
from common.messages.asks import MAX_NUMBER
from common.spec import TASK_ID_PATTERN
from gateway_svc.bodies import TOML, for_tenant, read_task
from gateway_svc.http.dashboard.visitor import Form, Looking, PageRoute, Visitor
from gateway_svc.http.gateway import check_job, gateway_of
from gateway_svc.http.routes.tasks import DELETE_S
from gateway_svc.problems import FieldError, Problem, not_found, rejected
from gateway_svc.web.forms import Filled, read_form, task_form
from gateway_svc.web.reading import read_offers
from gateway_svc.web.views.task import CONTROLS

TaskId = Annotated[str, Path(pattern=TASK_ID_PATTERN)]
Letter = Annotated[int, Path(ge=1, le=MAX_NUMBER)]
REASON = "from the dashboard"

router = APIRouter(route_class=PageRoute)


@router.post("/tasks/{task}/delete")
async def remove_task(visitor: Looking, form: Form, task: TaskId) -> Response:  # noqa: ARG001  checked
    check_job(visitor.caller, "delete")
    door = visitor.caller.door
    await delete_task(door, await read_status(door, task), timeout_s=DELETE_S)
    return visitor.to("/tasks?done=deleted")


@router.post("/tasks/{task}/{verb}")
async def control_task(visitor: Looking, form: Form, task: TaskId, verb: str) -> Response:  # noqa: ARG001  checked
    known: dict[str, Verb] = {one: one for one in CONTROLS}
    if verb not in known:
        raise not_found()
    check_job(visitor.caller, verb)
    door = visitor.caller.door
    await control(door, known[verb], await read_status(door, task), REASON)
    return visitor.to(f"/tasks/{task}?done={verb}")


@router.post("/tasks/{task}/failures/{letter}/resend")
async def resend_letter(visitor: Looking, form: Form, task: TaskId, letter: Letter) -> Response:  # noqa: ARG001  checked
    check_job(visitor.caller, "resend")
    door = visitor.caller.door
    failure = await read_failure(door, letter)
    if failure.task != task:
        raise not_found()
    await resend(door, failure, timeout_s=gateway_of(visitor.request).settings.submit_timeout_s)
    return visitor.to(f"/tasks/{task}?done=resent")


@router.post("/new")
async def submit_form(visitor: Looking, form: Form) -> Response:
    """Check or submit the task of the form that has one field per value."""
    check_job(visitor.caller, "submit")
    found, errors, status = None, list[FieldError](), 200
    try:
        found = await _submit(visitor, read_form(form), form)
    except Problem as problem:
        errors, status = _errors_of(problem), problem.status
    if isinstance(found, Response):
        return found
    shown = task_form(Filled(form, errors or _previewed_errors(found)), await read_offers(visitor.caller.door))
    return visitor.page("new", form=shown, tenant=form.get("tenant", ""), source="", preview=found, status=status)


@router.post("/new/toml")
async def submit_toml(visitor: Looking, form: Form) -> Response:
    """Check or submit a task file entered as text."""
    check_job(visitor.caller, "submit")
    found, errors, status, text = None, list[FieldError](), 200, form.get("text", "")
    try:
        found = await _submit(visitor, await read_task(text.encode(), TOML, visitor.request.state.place), form)
    except Problem as problem:
        errors, status = _errors_of(problem), problem.status
    if isinstance(found, Response):
        return found
    shown = {"text": text, "errors": errors or _previewed_errors(found), "preview": found}
    return visitor.page("new_toml", status=status, **shown)


async def _submit(visitor: Visitor, given: dict[str, JsonValue], form: dict[str, str]) -> Response | Event:
    """Preview the task, if the form only requests that; else submit it and redirect to its page.

    Raises: Problem with the reasons of a rejection, or if a budget is used up.
    """
    tenant = visitor.caller.tenant
    if tenant is None and form.get("tenant"):
        given = {**given, "tenant": form["tenant"]}
    spec, door = for_tenant(given, tenant), visitor.caller.door
    gateway = gateway_of(visitor.request)
    timeout_s = gateway.settings.submit_timeout_s
    try:
        if form.get("action") != "submit":
            return await preview(door, spec, timeout_s=timeout_s)
        await gateway.limiter.check_spending(str(spec["tenant"]))
        accepted = await submit(door, spec, None, timeout_s=timeout_s)
    except TaskRejected as error:
        raise rejected(error.reasons) from None
    except Unanswered as error:
        return visitor.to(f"/tasks?done=stored&text={error.task}")
    return visitor.to(f"/tasks/{accepted.task}?done=submitted")


def _previewed_errors(previewed: Event | None) -> list[FieldError]:
    return list(rejected(rejection_reasons(previewed)).errors) if previewed is not None and previewed.data.get("reasons") else []


def _errors_of(problem: Problem) -> list[FieldError]:
    """Errors to show in the form. Raises: `problem`, unless the user's input or a used-up budget caused it."""
    if problem.status not in (400, 402):
        raise problem
    return list(problem.errors) or [FieldError("", problem.detail)]
