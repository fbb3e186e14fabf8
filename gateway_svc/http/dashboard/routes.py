"""The family of the dashboard's routes. The OpenAPI document leaves them out: they are for browsers."""

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from common.messages import MAX_FILE_BYTES
from gateway_svc.http.dashboard import actions, login, pages, playground, tenancy
from gateway_svc.http.dashboard.playground import COLUMNS_FAMILY as COLUMNS_FAMILY
from gateway_svc.http.dashboard.tenancy import UPLOAD
from gateway_svc.http.dashboard.visitor import PREFIX, PageRoute, problem_page, root_of
from gateway_svc.http.errors import Family
from gateway_svc.http.routes.files import FORM_BYTES

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for part in (pages, login, actions, playground, tenancy):
    router.include_router(part.router, prefix=PREFIX)


@router.get("/")
async def start(request: Request) -> Response:
    return RedirectResponse(f"{root_of(request)}/tasks", 303)


LIMITS = {f"{PREFIX}{UPLOAD}": MAX_FILE_BYTES + FORM_BYTES, f"{PREFIX}/login": login.FORM_BYTES}
FAMILY = Family(router, problem_page, (PREFIX,), LIMITS)
