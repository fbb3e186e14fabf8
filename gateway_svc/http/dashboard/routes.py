"""The family of the dashboard's routes. None of them is in the description of the interface: they are for browsers."""

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from gateway_svc.http.dashboard import actions, files, live, login, pages, playground
from gateway_svc.http.dashboard.playground import COLUMNS_FAMILY as COLUMNS_FAMILY
from gateway_svc.http.dashboard.route import PREFIX, PageRoute, problem_page, root_of
from gateway_svc.http.family import Family

router = APIRouter(include_in_schema=False, route_class=PageRoute)
for part in (pages, login, live, files, actions, playground):
    router.include_router(part.router, prefix=PREFIX)


@router.get("/")
async def start(request: Request) -> Response:
    return RedirectResponse(f"{root_of(request)}/tasks", 303)


FAMILY = Family(router, problem_page, (PREFIX,))
