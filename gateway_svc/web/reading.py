"""Questions of pages to the scheduler, with the caller's permissions. A page asks few concurrently, as a
tenant has four slots for questions.

All functions here raise what `Door.ask` raises.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from common.client_api.asking import Door, UnknownHere
from common.client_api.deployment import Accelerators, read_environments, read_pools
from common.client_api.protocol import at_cursor, pages
from common.client_api.tenancy.aliases import Aliases
from common.client_api.tenancy.packages import Packages
from common.client_api.tenancy.tenants import Billing
from common.client_api.training import download, progress
from common.client_api.training.progress import read_evaluations, read_failures, read_spec, read_status, read_steps, read_versions, read_why
from common.messages import (
    AccessAnswer,
    AskAccess,
    AskSteps,
    AskTasks,
    ExecutorOf,
    SliceOf,
    StepOf,
    StepsAnswer,
    TasksAnswer,
    TaskStatus,
    TenantAccess,
    WhyAnswer,
)
from common.task_states import ENDED
from gateway_svc.openai.models import name_of
from gateway_svc.web.forms import FormChoices
from gateway_svc.web.views.charts import Over, paged, thinning
from gateway_svc.web.views.listing import Listing, listing
from gateway_svc.web.views.task import Run, TaskPage, flat, task_charts
from gateway_svc.web.views.timeline import TaskLine, line_of
from gateway_svc.web.views.usage import Ledger

MODELS = 100
"""Number of newest tasks whose latest versions the playground offers."""
MAX_CONCURRENT_ASKS = 3
"""Maximum concurrent questions of one page."""
SLICES = 50
"""Maximum slices of shared accelerators shown, latest first."""
SPARK_STEPS = 40
"""Latest steps per task in the list of tasks."""
TIMELINE_TASKS = 100
"""Tasks per timeline page; a page may have a few more."""
TIMELINE_STEPS = 1000
"""Latest steps per task in the timeline."""
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Shared:
    executors: Sequence[ExecutorOf]
    slices: Sequence[SliceOf]
    """Slices, newest first; a tenant sees those that served its tasks."""


Models = dict[str, dict[str, str]]
"""Kind → model name → label."""


async def read_listing(door: Door, wanted: AskTasks) -> Listing:
    """Read one page of the list of tasks."""
    page = await door.ask("tasks", wanted, TasksAnswer)
    steps = await _each(page.tasks, lambda status: latest_steps(door, status, SPARK_STEPS))
    waiting = [status for status in page.tasks if status.state not in ENDED]
    why = await _each(waiting, lambda status: _why(door, status))
    by_task = {status.task: answer for status, answer in zip(waiting, why, strict=True) if answer is not None}
    found = {status.task: of_task for status, of_task in zip(page.tasks, steps, strict=True)}
    return listing(wanted, page.tasks, page.cursor, found, by_task)


async def _why(door: Door, status: TaskStatus) -> WhyAnswer | None:
    """Reason why a task waits; None if the task was deleted meanwhile."""
    with suppress(UnknownHere):
        return await read_why(door, status.task)
    return None


async def latest_steps(door: Door, status: TaskStatus, most: int) -> list[StepOf]:
    """The `most` latest steps of a task, and those that the trainer works on."""
    if status.state == "rejected":
        return []
    with suppress(UnknownHere):
        return (await door.ask("steps", AskSteps(task=status.task, after=max(status.version - most, 0)), StepsAnswer)).steps
    return []


async def read_task_page(door: Door, task: str, over: Over, versions: int = 1) -> TaskPage:
    """Read the page of one task. `versions`: page number of the table of versions."""
    status = await read_status(door, task)
    every = thinning(status.version)
    why = await _why(door, status) if status.state not in ENDED else None
    steps, evaluations, stored = await asyncio.gather(
        read_steps(door, task, every=every), read_evaluations(door, task), read_versions(door, task)
    )
    return TaskPage(
        status=status,
        why=why,
        charts=task_charts(steps, evaluations, over),
        every=every,
        over=over,
        versions=paged(stored.versions[::-1], versions),
        spec=flat(await read_spec(door, task)),
        failures=await read_failures(door, task) if status.dead_letters else [],
        aliases=[one for one in await Aliases(door).all() if one.task == task],
    )


async def read_models(door: Door) -> Models:
    """Models that can be sampled now: aliases, latest versions of the newest tasks, and base models."""
    served = {pool.name for pool in await read_pools(door) if pool.serves}
    named = {one.name: one.model for one in await Aliases(door).all() if one.pool in served}
    newest = await door.ask("tasks", AskTasks(sort="created", descending=True, most=MODELS), TasksAnswer)
    versions = [name_of(one.task, one.adapter.version) for one in newest.tasks if one.adapter is not None and one.pool in served]
    return {
        "Aliases": {name: f"{name}: {model}" for name, model in named.items()},
        "Latest versions": {name: name for name in versions},
        "Base models": {name: name for name in sorted(served - set(named))},
    }


async def read_timeline(door: Door, cursor: str | None) -> tuple[list[TaskLine], str | None]:
    """The newest tasks after `cursor` with their latest steps, and the next cursor; tasks without steps are left out."""
    found, cursor = await progress.read_timeline(door, cursor, tasks=TIMELINE_TASKS, steps=TIMELINE_STEPS)
    return [line_of(one) for one in found], cursor


async def read_runs(door: Door, tasks: Sequence[str]) -> list[Run]:
    every = thinning(max([status.version for status in await _each(tasks, lambda task: read_status(door, task))], default=0))

    async def read(task: str) -> Run:
        return Run(task, await read_spec(door, task), await read_steps(door, task, every=every), await read_evaluations(door, task))

    return await _each(tasks, read)


async def read_usage(door: Door) -> Ledger:
    billing = Billing(door)
    lines, budgets, prices = await billing.invoice(), await billing.budgets(), await billing.prices()
    used = await download.read_usage(door)
    return Ledger(lines, budgets, prices, used.tenants, used.tasks)


async def read_offers(door: Door) -> FormChoices:
    """Names that a new task may use."""
    pools, found = await read_pools(door), await read_environments(door)
    packages = await Packages(door).all() if found.has_more else found.packages
    own = [name for package in packages for name in package.environments]
    return FormChoices([pool.name for pool in pools], sorted({*found.environments, *own}))


async def read_access(door: Door) -> list[TenantAccess]:
    """Keys by tenant."""
    found = pages(door, "access", AskAccess(), AccessAnswer, at_cursor)
    return [one async for page in found for one in page.tenants]


async def read_shared(door: Door) -> Shared | None:
    """Executors on shared accelerators and the latest slices; None if no pool shares an accelerator."""
    if not any(one.accelerators for one in await read_pools(door)):
        return None
    accelerators = Accelerators(door)
    executors, slices = await asyncio.gather(accelerators.executors(), accelerators.slices(most=SLICES))
    return Shared(executors, slices)


async def _each(items: Iterable[T], read: Callable[[T], Awaitable[U]]) -> list[U]:
    """Results in order, with a few concurrent questions. The first error cancels the others."""
    places = asyncio.Semaphore(MAX_CONCURRENT_ASKS)

    async def one(item: T) -> U:
        async with places:
            return await read(item)

    try:
        async with asyncio.TaskGroup() as questions:
            asked = [questions.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [question.result() for question in asked]
