"""Pages to read, the assets and data that they load, and notifications that their data changed."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Query, Request, Response
from markupsafe import escape
from pydantic import ValidationError

from common.client_api.asking import Door
from common.client_api.deployment import read_pools, read_replicas, read_troubles
from common.client_api.tenancy.tenants import Billing
from common.client_api.training.progress import read_samples, read_spec
from common.messages import AdapterAnswer, AskAdapter
from common.messages.asks import MAX_VERSION
from common.spec import TASK_ID_PATTERN
from gateway_svc.http.dashboard.visitor import Filtered, Looking, PageRoute
from gateway_svc.http.download import TAR, Span, adapter_headers, adapter_source, download
from gateway_svc.http.event_stream import Ends, EventStream, Sse
from gateway_svc.http.gateway import check_job, check_question, gateway_of, token_texts
from gateway_svc.problems import FieldError, invalid, not_found, wrong_fields_of
from gateway_svc.web import reading
from gateway_svc.web.forms import Filled, filled_from, task_form
from gateway_svc.web.templates import assets
from gateway_svc.web.views.charts import OVERS, Over
from gateway_svc.web.views.listing import COLUMNS, STATES, wanted_tasks
from gateway_svc.web.views.samples import BYS, LEGENDS, By, samples_page
from gateway_svc.web.views.task import CONTROLS, MAX_RUNS, compared, differences
from gateway_svc.web.views.timeline import STAGES, as_data, load_of
from gateway_svc.web.views.usage import NAMES, TOKENS, as_csv, usage_page

TaskId = Annotated[str, Path(pattern=TASK_ID_PATTERN)]
Text = Annotated[str, Query(max_length=200)]
Number = Annotated[int, Query(ge=1, le=MAX_VERSION)]
TimelineCursor = Annotated[str, Query(pattern=rf"^$|^[0-9]{{1,20}}~{TASK_ID_PATTERN[1:]}")]

router = APIRouter(route_class=PageRoute)
SPACING_S = 1.0
"""Minimum seconds between two updates of a page."""
REFRESH_S = 20.0
"""Seconds without an event after which a page reloads its data: not everything that it shows has events."""
NEWS = Sse("", event="news")


@router.get("")
async def home(visitor: Looking) -> Response:
    return visitor.to("/tasks")


@router.get("/tasks")
async def tasks(
    visitor: Filtered,
    state: Annotated[list[str], Query(max_length=10)] = [],  # noqa: B006  never changed
    pool: Text = "",
    text: Text = "",
    sort: Text = "",
    cursor: Text = "",
) -> Response:
    try:
        wanted = wanted_tasks(state, pool, text, sort, cursor)
    except ValidationError as error:
        raise wrong_fields_of(error.errors()) from None
    found = await reading.read_listing(visitor.caller.door, wanted)
    pools = [one.name for one in await read_pools(visitor.caller.door)]
    return visitor.page("tasks", listing=found, states=STATES, columns=COLUMNS, pools=pools)


@router.get("/tasks/{task}")
async def task(visitor: Looking, task: TaskId, over: Over = "step", versions: Number = 1) -> Response:
    found = await reading.read_task_page(visitor.caller.door, task, over, versions)
    return visitor.page("task", shown=found, overs=OVERS, every_control=CONTROLS)


@router.get("/tasks/{task}/samples")
async def samples(
    visitor: Looking,
    task: TaskId,
    step: Annotated[int | None, Query(ge=1, le=MAX_VERSION)] = None,
    attempt: Annotated[int, Query(ge=0, le=99)] = 0,
    other: Annotated[int | None, Query(alias="with", ge=0, le=99)] = None,
    by: By = "logprob",
) -> Response:
    """Samples of a step. `with`: another attempt of the same group, to compare."""
    answer = await read_samples(visitor.caller.door, task, step)
    texts = await token_texts(gateway_of(visitor.request), answer)
    shown = await asyncio.to_thread(samples_page, answer, texts, attempt, other, by)
    return visitor.page("samples", shown=shown, bys=BYS, legends=LEGENDS)


@router.get("/new")
async def new_task(
    visitor: Looking, source: Annotated[str, Query(alias="from", pattern=rf"^$|{TASK_ID_PATTERN}")] = "", form: Text = ""
) -> Response:
    """Form for a new task. `from`: a task whose values fill the form."""
    check_job(visitor.caller, "submit")
    door = visitor.caller.door
    spec = await read_spec(door, source) if source else {}
    if form == "toml":
        return visitor.page("new_toml", text="", errors=(), preview=None)
    tenant = str(spec.get("tenant", ""))
    return visitor.page(
        "new", form=task_form(Filled(filled_from(spec)), await reading.read_offers(door)), tenant=tenant, source=source, preview=None
    )


@router.get("/timeline")
async def timeline(visitor: Filtered, cursor: TimelineCursor = "") -> Response:
    """Timeline of tasks. `cursor`: from the page before, if a tenant has more tasks than fit on a page."""
    lines, following = await reading.read_timeline(visitor.caller.door, cursor or None)
    load = zip(STAGES, load_of(lines), strict=True)
    # Escaped here with `escape`: the template's `visible` truncates texts. JSON escapes all characters outside ASCII.
    drawn = escape(json.dumps(as_data(lines, {line.task: f"{visitor.root}/tasks/{line.task}" for line in lines})))
    most = reading.TIMELINE_STEPS
    shared = await reading.read_shared(visitor.caller.door)
    return visitor.page(
        "timeline",
        lines=lines,
        load=load,
        stages=STAGES,
        most_steps=most,
        cursor=cursor,
        following=following,
        drawn=drawn,
        shared=shared,
    )


@router.get("/compare")
async def compare(
    visitor: Looking,
    task: Annotated[list[str], Query(max_length=50)] = [],  # noqa: B006  never changed
    over: Over = "step",
) -> Response:
    names = list(dict.fromkeys(part for one in task for part in one.replace(",", " ").split()))
    if strange := [name for name in names if not re.fullmatch(TASK_ID_PATTERN, name)]:
        raise invalid(FieldError("task", f"'{strange[0][:63]}' is no task's id"))
    if len(names) > MAX_RUNS:
        raise invalid(FieldError("task", f"{len(names)} tasks; a comparison has {MAX_RUNS} at most"))
    runs = await reading.read_runs(visitor.caller.door, names)
    same = urlencode([("task", name) for name in names])
    differing = differences([run.spec for run in runs])
    return visitor.page(
        "compare", names=names, over=over, overs=OVERS, same=same, most=MAX_RUNS, charts=compared(runs, over), differences=differing
    )


@router.get("/usage")
async def usage(visitor: Filtered, days: Number = 1, tasks: Number = 1) -> Response:
    check_question(visitor.caller, "invoice")
    found = usage_page(await reading.read_usage(visitor.caller.door), days=days, tasks=tasks)
    return visitor.page("usage", shown=found, names=NAMES, token_columns=TOKENS)


@router.get("/stages")
async def stages(visitor: Filtered) -> Response:
    door = visitor.caller.door
    replicas, pools, shared = await read_replicas(door), await read_pools(door), await reading.read_shared(door)
    return visitor.page("stages", replicas=replicas, pools=pools, shared=shared, troubles=await read_troubles(door))


@router.get("/static/{digest}/{name}")
async def asset(digest: str, name: str) -> Response:
    found = assets().get(name)
    if found is None or found.digest != digest:
        raise not_found()
    headers = {"Cache-Control": "public, immutable, max-age=31536000", "Content-Type": found.media_type}
    return Response(found.content, headers=headers)


@router.get("/tasks/{task}/versions/{version}/adapter.tar")
async def adapter(visitor: Looking, request: Request, task: TaskId, version: Annotated[int, Path(ge=0, le=MAX_VERSION)]) -> Response:
    found = (await visitor.caller.door.ask("adapter", AskAdapter(task=task, version=version), AdapterAnswer)).adapter
    source = adapter_source(visitor.caller.door, found)
    return await download(request, source, Span(0, source.size_bytes - 1), adapter_headers(f"{task}-v{version}.tar"), media_type=TAR)


@router.get("/usage.csv")
async def usage_csv(visitor: Filtered) -> Response:
    check_question(visitor.caller, "invoice")
    content = as_csv(await Billing(visitor.caller.door).invoice())
    headers = {"Content-Disposition": 'attachment; filename="usage.csv"'}
    return Response(content, media_type="text/csv; charset=utf-8", headers=headers)


TaskName = Annotated[str, Query(pattern=rf"^$|{TASK_ID_PATTERN}")]


@router.get("/live")
async def live(visitor: Filtered, task: TaskName = "") -> Response:
    """Stream change notifications of one task or of all: one immediately, since the page may be outdated, and one after each change."""
    caller = visitor.caller
    ends = Ends(caller, gateway_of(visitor.request).drain, is_resumable=True)
    return EventStream(_news(caller.door, caller.tenant, task or None), ends)


async def _news(door: Door, tenant: str | None, task: str | None) -> AsyncGenerator[Sse]:
    async with door.listening(tenant, task) as events:
        while True:
            yield NEWS
            await asyncio.sleep(SPACING_S)
            await door.next_event(events, REFRESH_S)
            while await door.next_event(events, 0.05) is not None:
                pass
