"""The application, of families of routes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from common.errors import MarlaasError
from gateway_svc.http import dashboard
from gateway_svc.http.description import describe
from gateway_svc.http.errors import as_problem, forget_frames
from gateway_svc.http.family import Family
from gateway_svc.http.forwarded import Forwarded
from gateway_svc.http.gateway import Gateway
from gateway_svc.http.guard import Guard
from gateway_svc.http.routes import (
    aliases,
    billing,
    deployment,
    door,
    files,
    fine_tuning,
    health,
    inference,
    records,
    tasks,
    versions,
    webhooks,
)
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


def all_families() -> list[Family]:
    """Every family of routes; other parts of the gateway add theirs here."""
    return [
        health.FAMILY,
        tasks.FAMILY,
        records.FAMILY,
        records.OF_ALL,
        versions.FAMILY,
        aliases.FAMILY,
        webhooks.FAMILY,
        deployment.FAMILY,
        door.FAMILY,
        billing.FAMILY,
        inference.FAMILY,
        fine_tuning.FAMILY,
        dashboard.COLUMNS_FAMILY,
        fine_tuning.GRADERS,
        files.FAMILY,
        dashboard.FAMILY,
    ]


def described(families: Sequence[Family]) -> FastAPI:
    """The routes with their description, without what they need to run."""
    app = FastAPI(title="MARLaaS", version=VERSION, description=DESCRIPTION, openapi_url="/openapi.json", docs_url=None, redoc_url=None)
    for family in families:
        app.router.routes.extend(family.router.routes)  # including the router would make each route once more, which takes 0.2 s
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(describe(app))
        return document

    app.openapi = openapi  # FastAPI's documented way to change it
    return app


def _methods(app: FastAPI, request: Request) -> list[str]:
    """Of all routes with this path: the framework names those of the first one only."""
    found = [route for route in app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods or ()})


def application(gateway: Gateway, families: Sequence[Family]) -> ASGIApp:
    """What the server runs."""
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
