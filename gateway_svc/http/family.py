"""Family: routes that answer errors in one shape. Each part of the gateway brings its own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import APIRouter, Response

from gateway_svc.http.errors import problem_json
from gateway_svc.problems import Problem

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
