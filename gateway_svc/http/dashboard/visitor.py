"""Who looks at a page: a browser with a session, or anybody on a server without keys."""

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Request, Response
from starlette.responses import HTMLResponse, RedirectResponse

from common.access.roles import JOBS_OF_ROLE, may_ask
from common.spec import NAME_PATTERN
from gateway_svc.access.access import Caller, Unauthorized
from gateway_svc.http.dashboard.bodies import form_of
from gateway_svc.http.dashboard.route import root_of, theme_of
from gateway_svc.http.gateway import gateway_of
from gateway_svc.http.guard import check_site
from gateway_svc.problems import Problem, forbidden, roles_of_job, roles_of_question
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


@dataclass(frozen=True)
class Visitor:
    request: Request
    caller: Caller
    sessions: Sessions
    cookie: str
    """Empty on a server without keys."""
    filtered: str = ""
    """The tenant that an admin chose to see alone."""

    @property
    def for_tenant(self) -> str:
        """Query by which another page shows the same tenant."""
        return f"?tenant={self.filtered}" if self.filtered else ""

    @property
    def root(self) -> str:
        return root_of(self.request)

    def may(self, job: str) -> bool:
        return job in JOBS_OF_ROLE[self.caller.role]

    def may_ask(self, question: str) -> bool:
        return may_ask(self.caller.role, question)

    def check_job(self, job: str) -> None:
        """Raises: Problem naming the roles that may send it. NATS refuses it too."""
        if not self.may(job):
            raise forbidden(roles_of_job(job))

    def check_question(self, question: str) -> None:
        """Raises: Problem naming the roles that may ask it."""
        if not self.may_ask(question):
            raise forbidden(roles_of_question(question))

    def page(self, template: str, *, status: int = 200, **shown: object) -> Response:
        """A page with what all pages have."""
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
        """A redirection after a form."""
        return RedirectResponse(f"{self.root}{path}", 303)

    def done(self, path: str, notice: str) -> Response:
        """A redirection to a page of the same tenant, which says what was done."""
        return self.to(f"{path}?done={notice}{f'&tenant={self.filtered}' if self.filtered else ''}")


async def _visitor(request: Request) -> AsyncGenerator[Visitor]:
    """Raises: Problem, a redirection to the page where one logs in."""
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
    """Who sees one tenant's data, where an admin names it. Raises: Problem when another names one."""
    if tenant in ("", visitor.caller.tenant):
        return visitor
    if visitor.caller.role != "admin":
        raise forbidden(["admin"])
    caller = replace(visitor.caller, door=visitor.caller.door.of(tenant), tenant=tenant)
    return replace(visitor, caller=caller, filtered=tenant)


Filtered = Annotated[Visitor, Depends(_filtered)]


async def _filled(visitor: Looking) -> dict[str, str]:
    """Fields of a form of this session. Raises: Problem for a form that another page made."""
    check_site(visitor.request.headers)
    state = visitor.request.state
    state.is_malformed = True
    fields = check_token(await form_of(visitor.request), visitor.sessions, visitor.cookie)
    state.is_malformed = False
    return fields


Form = Annotated[dict[str, str], Depends(_filled)]


def check_token(fields: dict[str, T], sessions: Sessions, cookie: str = "") -> dict[str, T]:
    """The other fields. Raises: Problem for a form without the session's token; that of the log-in page has no session yet."""
    if not sessions.is_token_of(cookie, str(fields.pop("csrf", ""))):
        raise Problem(403, "Not permitted", "this form is of another session; go back, reload the page and send it again", "csrf")
    return fields
