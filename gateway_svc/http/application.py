"""The application, made of families of routes, and its OpenAPI 3.1 document."""

import ipaddress
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import MarlaasError
from common.messages.verbs import JOBS, QUESTIONS
from common.spec import TaskSpec
from gateway_svc.http import dashboard
from gateway_svc.http.errors import MEDIA_TYPE, Family, ProblemBody, as_problem, forget_frames
from gateway_svc.http.gateway import Gateway
from gateway_svc.http.guard import Guard
from gateway_svc.http.routes import aliases, deployment, door, files, fine_tuning, inference, records, tasks, versions, webhooks
from gateway_svc.problems import Problem

VERSION = "1"
"""Version of the interface."""
DESCRIPTION = (
    "Tasks that fine-tune language models by reinforcement learning: docs/http.md. "
    "A path that has not the method of a request is answered with 405 and `Allow`, one that there is not with 404."
)
CORS_METHODS = ("GET", "POST", "PUT", "DELETE")
RATE_HEADERS = tuple(f"x-ratelimit-{what}-{rate}" for what in ("limit", "remaining", "reset") for rate in ("requests", "tokens"))
EXPOSED_HEADERS = ("x-request-id", "retry-after", "location", "etag", "content-range", *RATE_HEADERS)
CORS_HEADERS = ("authorization", "content-type", "idempotency-key", "last-event-id", "if-match", "if-none-match")
REFERENCE = "#/components/schemas/{model}"
DEFAULT_ERROR = "422"
"""Status of FastAPI's own answer to invalid input; here it is a problem with status 400."""
PREFIX = re.compile(r"^(/[\w.~-]+){1,8}$")


def all_families() -> list[Family]:
    """Every family of routes; new families are added here."""
    return [
        deployment.HEALTH,
        tasks.FAMILY,
        records.FAMILY,
        records.OF_ALL,
        versions.FAMILY,
        aliases.FAMILY,
        webhooks.FAMILY,
        deployment.FAMILY,
        door.FAMILY,
        deployment.BILLING,
        inference.FAMILY,
        fine_tuning.FAMILY,
        dashboard.COLUMNS_FAMILY,
        fine_tuning.GRADERS,
        files.FAMILY,
        dashboard.FAMILY,
    ]


def described(families: Sequence[Family]) -> FastAPI:
    """The routes with their OpenAPI document, without the state that they need to run."""
    app = FastAPI(title="MARLaaS", version=VERSION, description=DESCRIPTION, openapi_url="/openapi.json", docs_url=None, redoc_url=None)
    for family in families:
        app.router.routes.extend(family.router.routes)  # `include_router` would create each route again, which takes 0.2 s
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(describe(app))
        return document

    app.openapi = openapi  # FastAPI's documented way to replace the document
    return app


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Methods of all routes that match the request's path; the framework lists only the methods of the first."""
    found = [route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


def application(gateway: Gateway, families: Sequence[Family]) -> ASGIApp:
    """The ASGI application that the server runs."""
    app = described(families)
    app.state.gateway = gateway
    guard = Guard(app, gateway, list(families))

    async def answer(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        if problem is None:
            raise error
        forget_frames(error)
        if problem.status == 405:
            methods = ", ".join(_methods(app, request))
            problem = replace(problem, detail=f"{request.method} is none of this path's methods: {methods}", headers={"Allow": methods})
        return guard.render(request.url.path, problem)

    for kind in (Problem, MarlaasError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
    outer: ASGIApp = guard
    if gateway.settings.cors_origins:
        outer = CORSMiddleware(
            outer, gateway.settings.cors_origins, CORS_METHODS, CORS_HEADERS, allow_credentials=False, expose_headers=EXPOSED_HEADERS
        )
    return Forwarded(outer, gateway.settings.trusted_proxies)


def describe(app: FastAPI) -> dict[str, Any]:
    """Build the OpenAPI document. `Any` because JSON has no schema."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
    schemas: dict[str, Any] = document.setdefault("components", {}).setdefault("schemas", {})
    for model in (TaskSpec, ProblemBody):
        _describe(model, schemas)
    if (operation := document["paths"].pop("/v1/ask/{verb}", None)) is not None:
        for verb, question in QUESTIONS.items():
            document["paths"][f"/v1/ask/{verb}"] = _of_verb(operation, schemas, verb, question.request, question.answer)
    if (operation := document["paths"].pop("/v1/jobs/{verb}", None)) is not None:
        for verb, job in JOBS.items():
            document["paths"][f"/v1/jobs/{verb}"] = _of_verb(operation, schemas, verb, job, None)
    schemas["TaskSpec"]["required"].remove("tenant")  # it comes from the key or from ?tenant=NAME
    for operations in document["paths"].values():
        for operation in operations.values():
            _complete(operation)
            _correct(operation["responses"])
            _share(operation["responses"], document["components"].setdefault("responses", {}))
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return document


def _describe(model: type[BaseModel], schemas: dict[str, Any], *, is_answer: bool = False) -> dict[str, str]:
    """Add the schemas of a model and of everything that it refers to; return a reference to it."""
    schema = model.model_json_schema(ref_template=REFERENCE, mode="serialization" if is_answer else "validation")
    for name, one in {**schema.pop("$defs", {}), model.__name__: schema}.items():
        schemas.setdefault(name, one)
    return {"$ref": REFERENCE.format(model=model.__name__)}


def _of_verb(
    path: dict[str, Any], schemas: dict[str, Any], verb: str, request: type[BaseModel], answer: type[BaseModel] | None
) -> dict[str, Any]:
    """OpenAPI path of one verb, made from the path with the parameter `{verb}`: with the verb's own request and answer."""
    operation = deepcopy(path["post"])
    operation["operationId"] += f"_{verb}"
    operation["parameters"] = [one for one in operation["parameters"] if one["name"] != "verb"]
    operation["requestBody"]["content"] = {"application/json": {"schema": _describe(request, schemas)}}
    if answer is not None:
        operation["responses"]["200"]["content"] = {"application/json": {"schema": _describe(answer, schemas, is_answer=True)}}
    return {"post": operation}


def _complete(operation: dict[str, Any]) -> None:
    """Add the errors that every route has: 400 for parameters if it has a caller, and body errors if it has a body."""
    answers = operation["responses"]
    likely = {400} if operation.get("security") else set[int]()
    likely |= {408, 413, 415} if "requestBody" in operation else set[int]()
    for status in sorted(likely):
        answers.setdefault(str(status), answers.get("401", {}) | {"description": HTTPStatus(status).phrase})


def _correct(answers: dict[str, Any]) -> None:
    if "HTTPValidationError" in str(answers.get(DEFAULT_ERROR)):
        del answers[DEFAULT_ERROR]
    for answer in answers.values():
        content = answer.get("content", {})
        if MEDIA_TYPE in content:
            content.pop("application/json", None)


def _share(answers: dict[str, Any], shared: dict[str, Any]) -> None:
    """Replace problem responses by references to `shared`: all routes have the same response for a status."""
    for status, answer in answers.items():
        if MEDIA_TYPE in answer.get("content", {}):
            name = answer["description"].title().replace(" ", "")
            shared[name] = answer
            answers[status] = {"$ref": f"#/components/responses/{name}"}


class Forwarded:
    """Sets client, scheme and path prefix from the headers of a trusted proxy."""

    def __init__(self, app: ASGIApp, proxies: Sequence[str]) -> None:
        self._app = app
        self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "http" and client is not None and self._is_named(client[0]):
            headers = Headers(scope=scope)
            if (scheme := headers.get("x-forwarded-proto", "").lower()) in ("http", "https"):
                scope["scheme"] = scheme
            if sender := self._sender(headers.getlist("x-forwarded-for")):
                scope["client"] = (sender, 0)
            prefix = headers.get("x-forwarded-prefix", "").rstrip("/")
            if PREFIX.match(prefix) and not scope["root_path"]:
                scope["root_path"], scope["path"] = prefix, prefix + scope["path"]
        await self._app(scope, receive, send)

    def _is_named(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in proxy for proxy in self._proxies)

    def _sender(self, forwarded: Sequence[str]) -> str | None:
        """The client: the last address that is no trusted proxy. The client itself may have forged the addresses before it."""
        addresses = [address.strip() for line in forwarded for address in line.split(",") if address.strip()]
        return next((address for address in reversed(addresses) if not self._is_named(address)), None)
