"""The visitor of a page: the key of a session, or anybody if the server has no keys. Also code shared by all pages and forms."""

import time
from binascii import a2b_qp
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import HTMLResponse, RedirectResponse

from common.access.roles import JOBS_OF_ROLE, may_ask
from common.resilience.event_loop import own_turn
from common.spec import NAME_PATTERN
from gateway_svc.access import Caller, Unauthorized
from gateway_svc.bodies import check_values
from gateway_svc.http.errors import as_problem, forget_frames
from gateway_svc.http.gateway import gateway_of
from gateway_svc.http.guard import check_site
from gateway_svc.http.strict import check_content_type
from gateway_svc.problems import FieldError, Problem, forbidden, invalid
from gateway_svc.web.session import Sessions
from gateway_svc.web.templates import render

T = TypeVar("T")
COOKIE = "marlaas_session"
NOTICES = {
    "pause": "The scheduler is asked to pause the task.",
    "resume": "The scheduler is asked to resume the task.",
    "cancel": "The scheduler is asked to cancel the task.",
    "uploaded": "The file is stored, and its rows can be used.",
    "file-deleted": "The file is deleted.",
    "webhook-deleted": "The webhook is deleted.",
    "deleted": "The task is deleted.",
    "submitted": "The task is accepted.",
    "stored": "The task is stored. No scheduler has answered yet; it is accepted or rejected later.",
    "resent": "The message is sent again.",
}
MAX_FIELDS = 300
_ZEROS = bytes.maketrans(b"123456789ABCDEFabcdef", b"0" * 21)
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


@dataclass(frozen=True)
class Visitor:
    request: Request
    caller: Caller
    sessions: Sessions
    cookie: str
    """Session cookie; empty on a server without keys."""
    filtered: str = ""
    """Tenant that an admin filters by; empty: none."""

    @property
    def for_tenant(self) -> str:
        """Query string that keeps the tenant filter in links."""
        return f"?tenant={self.filtered}" if self.filtered else ""

    @property
    def root(self) -> str:
        return root_of(self.request)

    def may(self, job: str) -> bool:
        return job in JOBS_OF_ROLE[self.caller.role]

    def may_ask(self, question: str) -> bool:
        return may_ask(self.caller.role, question)

    def page(self, template: str, *, status: int = 200, **shown: object) -> Response:
        """Render a page with the values that all templates need."""
        html = render(
            template,
            root=self.root,
            theme=theme_of(self.request),
            visitor=self,
            csrf=self.sessions.csrf_token(self.cookie),
            here=self.request.url.path.removeprefix(self.root),
            query=self.request.url.query,
            notice=NOTICES.get(self.request.query_params.get("done", ""), ""),
            now_s=time.time(),
            **shown,
        )
        return HTMLResponse(html, status)

    def to(self, path: str) -> Response:
        """Redirect after a form, with status 303."""
        return RedirectResponse(f"{self.root}{path}", 303)

    def done(self, path: str, notice: str) -> Response:
        """Redirect to `path` with the tenant filter and a notice to show."""
        return self.to(f"{path}?done={notice}{f'&tenant={self.filtered}' if self.filtered else ''}")


async def _visitor(request: Request) -> AsyncGenerator[Visitor]:
    """Yield the visitor. Raises: Problem with status 303, a redirection to the login page."""
    gateway = gateway_of(request)
    cookie = request.cookies.get(COOKIE, "")
    key = gateway.sessions.open(cookie, time.time()) if cookie else None
    async with AsyncExitStack() as entered:
        try:
            caller = await entered.enter_async_context(gateway.access.entered(key))
        except Unauthorized:
            raise Problem(303, "No session", headers={"Location": f"{root_of(request)}/login"}) from None
        yield Visitor(request, caller, gateway.sessions, cookie if key is not None else "")


Looking = Annotated[Visitor, Depends(_visitor)]


async def _filtered(visitor: Looking, tenant: Annotated[str, Query(pattern=rf"^$|{NAME_PATTERN}")] = "") -> Visitor:
    """The visitor, limited to the tenant that an admin filters by. Raises: Problem if another role names a tenant."""
    if tenant in ("", visitor.caller.tenant):
        return visitor
    if visitor.caller.role != "admin":
        raise forbidden(["admin"])
    caller = replace(visitor.caller, door=visitor.caller.door.of(tenant), tenant=tenant)
    return replace(visitor, caller=caller, filtered=tenant)


Filtered = Annotated[Visitor, Depends(_filtered)]


async def _filled(visitor: Looking) -> dict[str, str]:
    """Fields of a form of this session. Raises: Problem for a form of another session or site."""
    check_site(visitor.request.headers)
    state = visitor.request.state
    state.is_malformed = True
    fields = check_token(await form_of(visitor.request), visitor.sessions, visitor.cookie)
    state.is_malformed = False
    return fields


Form = Annotated[dict[str, str], Depends(_filled)]


def check_token(fields: dict[str, T], sessions: Sessions, cookie: str = "") -> dict[str, T]:
    """Remove and check the CSRF token; return the other fields. The login form has no session, so an empty cookie is checked.

    Raises: Problem if the token is not the session's.
    """
    if not sessions.is_token_of(cookie, str(fields.pop("csrf", ""))):
        raise Problem(403, "Not permitted", "this form is of another session; go back, reload the page and send it again", "csrf")
    return fields


async def form_of(request: Request) -> dict[str, str]:
    """Read a form; if a field is repeated, its last value counts. Raises: Problem."""
    check_content_type(request, "application/x-www-form-urlencoded")
    body = await request.body()
    await own_turn(len(body))
    try:
        found = read_form(body)
    except ValueError:
        raise invalid(FieldError("", f"not a form of at most {MAX_FIELDS} fields in UTF-8")) from None
    check_values(dict[str, object](found))  # type: ignore[arg-type]
    return {name: value.replace("\r\n", "\n") for name, value in found.items()}


def read_form(body: bytes) -> dict[str, str]:
    """Parse a form; if a field is repeated, its last value counts. The standard library would take half a second per mebibyte of escapes.

    Raises: ValueError.
    """
    if body.count(b"&") >= MAX_FIELDS or body.count(b"%") != body.translate(_ZEROS).count(b"%00"):
        raise ValueError("too many fields, or a percent sign without two hexadecimal digits")
    pairs = [field.partition(b"=") for field in body.replace(b"+", b" ").split(b"&") if field]
    return {_unescaped(name): _unescaped(value) for name, _, value in pairs}


def _unescaped(text: bytes) -> str:
    """Decode percent escapes, rewritten as quoted-printable, for which the standard library has a fast decoder."""
    return a2b_qp(text.replace(b"=", b"%3D").replace(b"%", b"=")).decode()


def root_of(request: Request) -> str:
    """Path of the dashboard, with the proxy's prefix."""
    return f"{request.scope.get('root_path', '')}{PREFIX}"


def theme_of(request: Request) -> str:
    """Theme from the cookie; empty: the browser's preference."""
    chosen = request.cookies.get(THEME, "")
    return chosen if chosen in THEMES else ""


def problem_page(problem: Problem, root: str = PREFIX, theme: str = "") -> Response:
    """Render a problem as a page, or as a redirection if its status is 303."""
    if problem.status == 303:
        return Response(status_code=303, headers=dict(problem.headers))
    return HTMLResponse(render("problem", problem=problem, root=root, theme=theme), problem.status, headers=dict(problem.headers) | HEADERS)


class PageRoute(APIRoute):
    def shown(self, request: Request, problem: Problem) -> Response:
        """Render a problem as a page."""
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
