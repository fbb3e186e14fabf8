"""PageRoute: headers of every page, and errors as pages."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse

from gateway_svc.http.errors import as_problem, forget_frames
from gateway_svc.problems import Problem
from gateway_svc.web.templates import render

PREFIX = "/ui"
THEME = "marlaas_theme"
THEMES = ("light", "dark")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def root_of(request: Request) -> str:
    """Path of the dashboard, with the prefix that a proxy adds."""
    return f"{request.scope.get('root_path', '')}{PREFIX}"


def theme_of(request: Request) -> str:
    """Empty where the browser's preference counts."""
    chosen = request.cookies.get(THEME, "")
    return chosen if chosen in THEMES else ""


def problem_page(problem: Problem, root: str = PREFIX, theme: str = "") -> Response:
    """A problem as a page; of the status 303 as a redirection."""
    if problem.status == 303:
        return Response(status_code=303, headers=dict(problem.headers))
    return HTMLResponse(render("problem", problem=problem, root=root, theme=theme), problem.status, headers=dict(problem.headers) | HEADERS)


class PageRoute(APIRoute):
    def shown(self, request: Request, problem: Problem) -> Response:
        """A problem as an answer."""
        return problem_page(problem, root_of(request), theme_of(request))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                answer = await handle(request)
            except Exception as error:
                problem = as_problem(error)
                if problem is None:
                    raise
                forget_frames(error)
                answer = self.shown(request, problem)
            for name, value in {"Cache-Control": "no-store", **HEADERS}.items():
                answer.headers.setdefault(name, value)
            return answer

        return handle_page
