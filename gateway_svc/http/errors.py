"""Problems as answers, `application/problem+json`, and families of routes that answer them in one shape."""

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
    """Path in the body, or name of a parameter; empty where the whole request is meant."""
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
    """The problem that an error is, of the framework's too; None for a bug."""
    if isinstance(error, RequestValidationError):
        return wrong_fields_of(without_part(error))
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, Problem):  # FastAPI's own error for whatever a body's reader raises
            return error.__cause__
        return _framework_problem(error)
    return problem_of(error)


def forget_frames(error: BaseException | None) -> None:
    """Of an error that is answered, and of those that led to it. FastAPI's frames hold it, and the body: only a full collection of garbage,
    which a busy process puts off, would free them."""
    while error is not None:
        error.__traceback__ = None
        if error.__cause__ is not error.__context__:
            forget_frames(error.__cause__)
        error = error.__context__


def without_part(error: RequestValidationError) -> list[ErrorDetails]:
    """Its errors; their places begin with the part of the request there: `body`, `query`, …"""
    details: Sequence[ErrorDetails] = error.errors()
    return [{**detail, "loc": detail["loc"][1:]} for detail in details]


def _framework_problem(error: HTTPException) -> Problem:
    if error.status_code == 404:
        return not_found()
    return Problem(error.status_code, HTTPStatus(error.status_code).phrase, error.detail, headers=error.headers or {})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Documentation of a route's errors."""
    described = {"model": ProblemBody, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}}
    return {status: described | {"description": HTTPStatus(status).phrase} for status in statuses}


Render = Callable[[Problem], Response]


@dataclass(frozen=True)
class Family:
    router: APIRouter
    """Its routes want `route_class=StrictRoute` where they take JSON."""
    render: Render = problem_json
    """An error of these routes, as an answer."""
    paths: tuple[str, ...] = ()
    """Beginnings of the paths whose errors it renders, also where no route is found; one that renders as most do needs none."""
    body_bytes: Mapping[str, int] = field(default_factory=dict)
    """Beginning of a path → maximum bytes of its bodies, in place of the general limit."""
