"""Problems as answers, `application/problem+json`, and families of routes that render problems in one shape."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from gateway_svc.problems import Problem, not_found, problem_of, wrong_fields_of

MEDIA_TYPE = "application/problem+json"


class WrongField(BaseModel):
    field: str
    """Path in the body, or name of a parameter; empty if the error is about the whole request."""
    reason: str


class ProblemBody(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    code: str = Field(examples=["not_found"])
    errors: list[WrongField]


def problem_json(problem: Problem) -> Response:
    body = ProblemBody(
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        code=problem.code or HTTPStatus(problem.status).name.lower(),
        errors=[WrongField(field=error.field, reason=error.reason) for error in problem.errors],
    )
    return JSONResponse(body.model_dump(), problem.status, headers=dict(problem.headers), media_type=MEDIA_TYPE)


def as_problem(error: Exception) -> Problem | None:
    """The problem for an exception, also for FastAPI's own; None for a bug."""
    if isinstance(error, RequestValidationError):
        return wrong_fields_of(without_part(error))
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, Problem):  # FastAPI wraps every exception of a body's reader
            return error.__cause__
        return _framework_problem(error)
    return problem_of(error)


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an answered error and of its causes. FastAPI's frames reference the error and the body, and only a full
    garbage collection, which a busy process delays, would free them."""
    while error is not None:
        error.__traceback__ = None
        if error.__cause__ is not error.__context__:
            forget_frames(error.__cause__)
        error = error.__context__


def without_part(error: RequestValidationError) -> list[ErrorDetails]:
    """Errors of a request with the part of the request (`body`, `query`, …) removed from their locations."""
    details: Sequence[ErrorDetails] = error.errors()
    return [{**detail, "loc": detail["loc"][1:]} for detail in details]


def _framework_problem(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return not_found()
    return Problem(error.status_code, HTTPStatus(error.status_code).phrase, error.detail, headers=error.headers or {})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI responses for error statuses of a route."""
    described = {"model": ProblemBody, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}}
    return {status: described | {"description": HTTPStatus(status).phrase} for status in statuses}


COMMON = responses(400, 401, 403, 429, 503)
"""Errors of every route that takes a key."""
Render = Callable[[Problem], Response]


@dataclass(frozen=True)
class Family:
    router: APIRouter
    """Routes that take JSON need `route_class=StrictRoute`."""
    render: Render = problem_json
    """Renders an error of these routes as an answer."""
    paths: tuple[str, ...] = ()
    """Path prefixes whose errors this family renders even if no route matches. Not needed with the default `render`."""
    body_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path prefix → maximum body bytes, which replaces the general limit."""
