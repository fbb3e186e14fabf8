"""Tasks."""

from typing import Annotated

from fastapi import APIRouter, Query

from common.messages import AskTasks, TasksAnswer, TaskStatus
from gateway_svc.access import Caller
from gateway_svc.http.errors import responses
from gateway_svc.http.family import Family
from gateway_svc.http.gateway import Acting
from gateway_svc.http.strict import StrictRoute
from gateway_svc.listing import MAX_LISTED, Filter, Sort, page_of
from gateway_svc.problems import FieldError, invalid
from gateway_svc.shapes import State, Task, TaskPage

router = APIRouter(prefix="/v1/tasks", tags=["tasks"], route_class=StrictRoute)
FAMILY = Family(router)
Text = Annotated[str | None, Query(max_length=200)]


@router.get("", responses=responses(400, 401, 403, 503))
async def list_tasks(
    caller: Acting,
    state: Annotated[list[State], Query(description="Any of these; repeat it for several.")] = [],  # noqa: B006  never changed
    pool: Text = None,
    name: Text = None,
    text: Annotated[str | None, Query(max_length=200, description="Part of the id, the name or the reason.")] = None,
    sort: Sort = "-submitted",
    cursor: Annotated[str | None, Query(max_length=400)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> TaskPage:
    """Tasks of the tenant, a page at a time."""
    wanted = Filter(tuple(state), pool, name, text)
    kept, following = page_of(filter(wanted.shows, await _statuses(caller)), sort, cursor, limit)
    return TaskPage(data=[Task.of(one) for one in kept], next_cursor=following)


async def _statuses(caller: Caller) -> list[TaskStatus]:
    """Every task. Raises: Problem when there are too many to be read for one listing; as `Door.ask`."""
    found, cursor = list[TaskStatus](), None
    while True:
        page = await caller.door.ask("tasks", AskTasks(cursor=cursor), TasksAnswer)
        found, cursor = [*found, *page.tasks], page.cursor
        if cursor is None:
            return found
        if len(found) > MAX_LISTED:
            raise invalid(FieldError("", f"there are more than {MAX_LISTED} tasks; ask for one tenant's"))
