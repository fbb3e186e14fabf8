"""Why a task waits, from PostgreSQL and the live replicas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import FullStream
from common.messages import ReplicaReport, TroubleOf
from scheduler_svc.accelerators.asked import accelerator_waits
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.decisions.budgets import NO_PRICES, sentence
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, Load
from scheduler_svc.tenancy.shares import work_in_flight
from scheduler_svc.training.decisions.sharing.waiting import Cause, FullQueue, Kind, OverBudget, Places, Replicas, cause_of
from scheduler_svc.training.intake.environment_resolution import family_of
from scheduler_svc.training.queries.tasks import checks_requested
from scheduler_svc.training.queries.waiting import Found, waiting_task
from scheduler_svc.uploads.packages import CHECKS_PER_TENANT

NO_CAPACITY = Capacity(0, 0)
TAKERS = {
    "prompts": "env",
    "prompts.sample": "rollout",
    "prompts.serve": "rollout",
    "trajectories": "scheduler",
    "trajectories.turn": "env",
    "trajectories.scored": "trainer",  # reads them; they are deleted once their step is trained
    "trajectories.batch": "trainer",
}
"""Services that take messages, by the first parts of their subjects."""


async def why(
    connection: AsyncConnection,
    tenant: str | None,
    task: str,
    reports: Sequence[ReplicaReport],
    capacities: Mapping[str, Capacity],
    full: Sequence[FullStream] = (),
    *,
    shared: Collection[str] = (),
    troubles: Sequence[TroubleOf] = (),
) -> Cause | None:
    """The cause, or None when nothing holds the task. `tenant`: None for any. `capacities`: what admission allows in each pool.
    `shared`: pools with executors on shared accelerators. `troubles`: processes that do not work, which the cause's sentence names.

    Raises: LookupError when the tenant has no such task, or it has ended.
    """
    found = await waiting_task(connection, tenant, task)
    if found is None:
        raise LookupError(f"no task '{task}' that has not ended")
    over_budget = await _over_budget(connection, found.tenant, task) if found.over_budget else None
    waits = await accelerator_waits(connection, found.task.pool) if found.task.pool in shared else {}
    waiting = replace(
        found.task,
        checks=await _checks(connection, found, reports),
        over_budget=over_budget,
        sampler_waits=waits.get("rollout"),
        trainer_waits=waits.get("trainer"),
    )
    in_flight = await work_in_flight(connection)
    places = _places(found.tenant, task, in_flight, found.task.pool, capacities.get(found.task.pool, NO_CAPACITY))
    cause = cause_of(waiting, _replicas(found, reports), places, found.limits, [_full_queue(one, reports) for one in full])
    return _with_troubles(cause, [one for one in troubles if one.state != "recovered" and one.pool in (None, found.task.pool)])


def _with_troubles(cause: Cause | None, troubles: Sequence[TroubleOf]) -> Cause | None:
    """The cause, with the services that do not work now: they may be what it comes from."""
    named = [one for one in troubles if one.service in TAKERS.values()]
    if not named:
        return cause
    sentences = "; ".join(one.sentence for one in named)
    if cause is None:
        return Cause(Kind.NO_REPLICA, len(named), sentences)
    return replace(cause, sentence=f"{cause.sentence}; {sentences}")


async def _over_budget(connection: AsyncConnection, tenant: str, task: str) -> OverBudget | None:
    """The budget that has paused the task; None once it was raised, so that the task is about to go on."""
    purse = (await budgets.standings(connection, [tenant])).purses.get(tenant)
    waiting = next((one for one in await budgets.waiting_tasks(connection, [tenant]) if one.task == task), None)
    if purse is None or waiting is None:
        return None
    refusing = purse.refusing(waiting.pool, waiting.bound, evaluates=waiting.evaluates)
    if refusing is None:
        return None
    needed = refusing.cost(waiting.bound, purse.prices.get(waiting.pool, NO_PRICES), evaluates=waiting.evaluates)
    return OverBudget(float(refusing.amount), sentence(refusing, needed))


async def _checks(connection: AsyncConnection, found: Found, reports: Sequence[ReplicaReport]) -> int | None:
    """`WaitingTask.checks`."""
    family = family_of(found.task.environment, {family for report in reports for family in report.families})
    if found.task.is_accepted or found.family is not None or family is None:
        return None
    requested = await checks_requested(connection, found.tenant, family)
    return requested if requested >= CHECKS_PER_TENANT else None


def _places(tenant: str, task: str, in_flight: Mapping[str, InFlight], pool: str, capacity: Capacity) -> Places:
    here = in_flight.get(pool, InFlight())
    own, of_tenant = here.tasks.get((tenant, task), Load()).sequences, here.tenants.get(tenant, Load()).sequences
    everywhere = sum(load.tenants.get(tenant, Load()).sequences for load in in_flight.values())
    return Places(capacity, here.total, own, of_tenant - own, everywhere, here.tenants.get(tenant, Load()))


def _replicas(found: Found, reports: Sequence[ReplicaReport]) -> Replicas:
    samplers = [report for report in reports if report.service == "rollout" and report.pool == found.task.pool]
    serving = [report for report in reports if report.service == "env" and _serves(found, report)]
    trainers = [report for report in reports if report.service == "trainer" and report.pool == found.task.pool]
    return Replicas(
        samplers=len(samplers),
        environments=len(serving),
        trainers=len(trainers),
        sequences=sum(report.sequences for report in samplers),
        sampled=sum(report.busy.get("sequences", report.sequences) for report in samplers),
    )


def _full_queue(full: FullStream, reports: Sequence[ReplicaReport]) -> FullQueue:
    """Whose turn it is, by the oldest message of the stream."""
    first, kind, queue = (streams.token(full.oldest, place) or "" for place in range(3))
    service = TAKERS.get(f"{first}.{kind}", TAKERS.get(first))
    live = [report for report in reports if report.service == service]
    if kind != "scored":
        live = [report for report in live if queue in report.families or streams.pool_of(queue) == report.pool]
    return FullQueue(full.name, full.used_bytes, full.max_bytes, service, None if service == "scheduler" else len(live))


def _serves(found: Found, report: ReplicaReport) -> bool:
    if found.family is not None:
        return found.family in report.families
    return family_of(found.task.environment, set(report.families)) is not None
