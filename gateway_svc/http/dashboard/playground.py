"""One prompt to several models. Each is a request of OpenAI's API, authenticated by the session."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import JsonValue

from common.access.roles import ROLES
from gateway_svc.http.dashboard.visitor import PREFIX, Filtered, Form, PageRoute, Visitor, root_of
from gateway_svc.http.errors import Family, as_problem
from gateway_svc.http.gateway import check_job, count_request
from gateway_svc.http.openai_family import render
from gateway_svc.http.routes.inference import MAX_BODY_BYTES, chat_completions
from gateway_svc.openai.chat.request import ChatRequest
from gateway_svc.openai.parsing import parse_request
from gateway_svc.problems import Problem, roles_of_job
from gateway_svc.web.playground import (
    MAX_MODELS,
    MAX_TURNS,
    SETTINGS,
    Answer,
    Playground,
    as_code,
    failed_answer,
    first_playground,
    read_playground,
    whole_answer,
)
from gateway_svc.web.playground import ROLES as TURN_ROLES
from gateway_svc.web.reading import Models, read_models

COLUMNS = f"{PREFIX}/playground/columns"
NO_SESSION = Problem(401, "No session", "the session has ended; log in again", "unauthorized")
Names = Annotated[list[str], Query(max_length=MAX_MODELS)]

router = APIRouter(route_class=PageRoute)


@router.get("/playground")
async def playground(visitor: Filtered, model: Names = []) -> Response:  # noqa: B006  never changed
    models = await read_models(visitor.caller.door) if visitor.may("submit") else {}
    first = [name for offered in models.values() for name in offered][:1]
    return await _page(visitor, first_playground(model or first), models=models)


@router.post("/playground")
async def answered(visitor: Filtered, form: Form) -> Response:
    """The page for a browser without scripts: with finished answers, with one turn more or less, or with the prompt as code."""
    shown, action = read_playground(form), form.get("action", "")
    if action in ("add", "remove"):
        return await _page(visitor, shown.with_turns(1 if action == "add" else -1))
    if action == "code":
        return await _page(
            visitor, shown, code=as_code(shown, f"{visitor.request.url.scheme}://{visitor.request.url.netloc}{_api(visitor)}")
        )
    check_job(visitor.caller, "submit")
    return await _page(visitor, shown, answers=await asyncio.gather(*(_whole(visitor, shown, number) for number in shown.used)))


class ColumnRoute(PageRoute):
    """Renders errors in OpenAI's shape, which the script shows in the model's column."""

    def shown(self, request: Request, problem: Problem) -> Response:  # noqa: ARG002
        return render(NO_SESSION if problem.status == 303 else problem)


columns = APIRouter(route_class=ColumnRoute, prefix=PREFIX, include_in_schema=False)
COLUMNS_FAMILY = Family(columns, render, (COLUMNS,), {f"{PREFIX}/playground": MAX_BODY_BYTES})


@columns.post("/playground/columns/{number}")
async def column(visitor: Filtered, form: Form, number: Annotated[int, Path(ge=0, lt=MAX_MODELS)]) -> Response:
    """Stream the answer of one of the form's models, as `/v1/chat/completions` does."""
    return await _sample(visitor, read_playground(form), number, is_streamed=True)


async def _sample(visitor: Visitor, shown: Playground, number: int, *, is_streamed: bool) -> Response:
    """Send one of the form's prompts. Raises: Problem."""
    usage: dict[str, JsonValue] = {"stream_options": {"include_usage": True}} if is_streamed else {}
    body = parse_request(ChatRequest, {**shown.request(number), "stream": is_streamed, **usage})
    request = _numbered(visitor.request, number)
    await count_request(request, visitor.caller)
    return await chat_completions(request, visitor.caller, body)


async def _whole(visitor: Visitor, shown: Playground, number: int) -> Answer:
    try:
        return whole_answer(bytes((await _sample(visitor, shown, number, is_streamed=False)).body))
    except Exception as error:
        if (problem := as_problem(error)) is None:
            raise
        return failed_answer(shown.models[number], problem.status, bytes(render(problem).body))


def _numbered(request: Request, number: int) -> Request:
    """A copy of the request with its own id for samplers: the form's request id and the column's number."""
    state = {**request.scope["state"], "request_id": f"{request.state.request_id}c{number}"}
    return Request({**request.scope, "state": state}, request.receive)


def _api(visitor: Visitor) -> str:
    return f"{root_of(visitor.request).removesuffix(PREFIX)}/v1"


async def _page(
    visitor: Visitor,
    form: Playground,
    *,
    answers: list[Answer] | None = None,
    code: dict[str, str] | None = None,
    models: Models | None = None,
) -> Response:
    may = visitor.may("submit")
    offered = models if models is not None else await read_models(visitor.caller.door) if may else {}
    return visitor.page(
        "playground",
        form=form,
        may=may,
        permitted=[role for role in ROLES if role in roles_of_job("submit")],
        models=offered,
        offered_names={name for names in offered.values() for name in names},
        settings=SETTINGS,
        turn_roles=TURN_ROLES,
        most_turns=MAX_TURNS,
        answers=answers or [],
        code=code or {},
    )
