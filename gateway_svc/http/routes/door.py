"""Questions and jobs as sent over NATS, in JSON: used by the SDK, and for verbs that have no route of their own."""

import secrets
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Body, Header, Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.requests import Request

from common import streams
from common.bus import Outgoing
from common.client_api.asking import UnknownHere
from common.messages import Message, SubmitTask
from common.messages.asks import MAX_ASK_BYTES
from common.messages.verbs import JOBS, QUESTIONS
from gateway_svc.bodies import IDEMPOTENCY_KEY, JSON
from gateway_svc.http.errors import Family, responses
from gateway_svc.http.gateway import Acting, check_job, check_question, gateway_of
from gateway_svc.http.strict import StrictRoute
from gateway_svc.problems import Problem, not_found

router = APIRouter(prefix="/v1", tags=["door"], route_class=StrictRoute)
FAMILY = Family(router, body_bytes={"/v1/ask": MAX_ASK_BYTES})

COMMON = responses(400, 401, 403, 404, 413, 415, 429, 503)
Verb = Annotated[str, Path(max_length=40)]
Fields = Annotated[dict[str, Any], Body(description="Fields of the message of the verb.")]
Once = Annotated[str | None, Header(pattern=IDEMPOTENCY_KEY, description="The same key within two minutes: the same job.")]
M = TypeVar("M", bound=Message)


@router.post("/ask/{verb}", response_class=Response, responses=COMMON)
async def ask_question(request: Request, caller: Acting, verb: Verb, body: Fields) -> Response:  # noqa: ARG001  described, and checked
    """Ask the scheduler a question; the answer is the verb's message, as over NATS."""
    if (question := QUESTIONS.get(verb)) is None:
        raise _no_verb("question", verb, QUESTIONS)
    check_question(caller, verb)
    try:
        answer = await caller.door.ask(verb, await _read(question.request, request), question.answer)
    except UnknownHere as error:
        raise not_found(str(error)) from None
    return Response(answer.model_dump_json(), media_type=JSON)


@router.post("/jobs/{verb}", status_code=202, response_class=Response, responses=COMMON | responses(402))
async def send_job(request: Request, caller: Acting, verb: Verb, body: Fields, idempotency_key: Once = None) -> Response:  # noqa: ARG001
    """Send the scheduler a job. The answer, 202, says that NATS has stored it; events say what became of it."""
    if (model := JOBS.get(verb)) is None:
        raise _no_verb("job", verb, JOBS)
    check_job(caller, verb)
    job = await _read(model, request)
    if isinstance(job, SubmitTask) and caller.tenant in (None, job.tenant):  # another tenant's budget is not revealed; NATS refuses the job
        await gateway_of(request).limiter.check_spending(job.tenant)
    subject = streams.job(verb, getattr(job, "tenant", None))
    await caller.door.publish(Outgoing(subject, job, idempotency_key or secrets.token_hex(12)))
    return Response(status_code=202)


def _no_verb(kind: str, verb: str, known: dict[str, Any]) -> Problem:
    return not_found(f"there is no {kind} '{verb}'; there are: {', '.join(known)}")


async def _read(model: type[M], request: Request) -> M:
    """Parse the message in a strict JSON body.

    Raises: RequestValidationError, as FastAPI does for other routes, so that an invalid body is charged to the sender as there.
    """
    try:
        return model.model_validate_json(await request.body(), extra="forbid")
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]) from None
