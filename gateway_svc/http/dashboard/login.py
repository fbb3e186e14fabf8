"""Sessions: a key is exchanged for a cookie that contains the key, encrypted."""

import time

from fastapi import APIRouter, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from gateway_svc.access import Unauthorized
from gateway_svc.http.dashboard.visitor import COOKIE, THEME, THEMES, Form, Looking, PageRoute, check_token, form_of, root_of, theme_of
from gateway_svc.http.gateway import Gateway, gateway_of
from gateway_svc.http.guard import check_site
from gateway_svc.web.session import LASTS_S
from gateway_svc.web.templates import render

MAX_KEY = 200
FORM_BYTES = 16 * 1024
"""Maximum bytes of the login form, which needs no authentication."""
THEME_LASTS_S = 365 * 24 * 3600

router = APIRouter(route_class=PageRoute)


@router.get("/login")
async def login_page(request: Request) -> Response:
    if await _is_open(gateway_of(request)):
        return RedirectResponse(f"{root_of(request)}/tasks", 303)
    return _page(request)


@router.post("/login")
async def log_in(request: Request) -> Response:
    gateway = gateway_of(request)
    check_site(request.headers)
    fields = check_token(await form_of(request), gateway.sessions)
    key = fields.get("key", "").strip()
    try:
        if len(key) > MAX_KEY:
            raise Unauthorized("too long")
        async with gateway.access.entered(key):
            pass
    except Unauthorized:
        return _page(request, "This key is not valid.", 401)
    answer = RedirectResponse(f"{root_of(request)}/tasks", 303)
    _set_cookie(request, answer, COOKIE, gateway.sessions.seal(key, time.time()), LASTS_S, is_secret=True)
    return answer


@router.post("/logout")
async def log_out(visitor: Looking, form: Form) -> Response:  # noqa: ARG001  checked
    answer = visitor.to("/login")
    answer.delete_cookie(COOKIE, path=visitor.root, httponly=True, samesite="strict")
    return answer


@router.post("/theme")
async def choose_theme(visitor: Looking, form: Form) -> Response:
    """Set the theme cookie and redirect to the page from which it was chosen."""
    back, theme = form.get("back", ""), form.get("theme", "")
    answer = visitor.to(back if back.startswith("/") and "//" not in back and "\\" not in back and back.isprintable() else "/tasks")
    if theme in THEMES:
        _set_cookie(visitor.request, answer, THEME, theme, THEME_LASTS_S, is_secret=False)
    else:
        answer.delete_cookie(THEME, path=visitor.root)
    return answer


async def _is_open(gateway: Gateway) -> bool:
    """Whether the server has no keys."""
    try:
        async with gateway.access.entered(None):
            return True
    except Unauthorized:
        return False


def _page(request: Request, error: str = "", status: int = 200) -> Response:
    sessions = gateway_of(request).sessions
    shown = {"csrf": sessions.csrf_token(""), "error": error, "is_shared": sessions.is_shared}
    return HTMLResponse(render("login", root=root_of(request), theme=theme_of(request), **shown), status)


def _set_cookie(request: Request, answer: Response, name: str, value: str, lasts_s: int, *, is_secret: bool) -> None:
    is_https = request.url.scheme == "https"
    answer.set_cookie(name, value, lasts_s, path=root_of(request), secure=is_https, httponly=is_secret, samesite="strict")
