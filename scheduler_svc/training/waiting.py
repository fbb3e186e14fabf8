"""Why a task waits: inputs of `decisions/waiting.py` from PostgreSQL and the live replicas."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Double, func, not_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import FullStream
from common.limits import Limit
from common.messages import ReplicaReport, TroubleOf
from common.messages.status import WITHHELD
from scheduler_svc.accelerators.asked import accelerator_waits
from scheduler_svc.base.sql import in_state
from scheduler_svc.base.states import LIVE, GroupState, StepState, TaskState
from scheduler_svc.base.tables import IN_TRAINING, allowance_of, groups, steps, tasks, tenants
from scheduler_svc.tenancy.billing import budgets
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlight, InFlightLimits, Load
from scheduler_svc.tenancy.limits import USED_UP, WITH_LIMITS, limit_of, used_up
from scheduler_svc.tenancy.shares import work_in_flight
from scheduler_svc.training.decisions.waiting import (
    Cause,
    FullQueue,
    Kind,
    Limits,
    OverBudget,
    Places,
    Replicas,
    TrainerQueue,
    WaitingTask,
    cause_of,
)
from scheduler_svc.training.environment_checks import family_of
from scheduler_svc.training.queries.tasks import checks_requested
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
"""Consuming service, by the first tokens of a subject."""


IN_FLIGHT: tuple[Limit, ...] = ("max_sequences", "max_pool_sequences", "max_pool_tokens")
_AS_FOUND = ("pool", "environment", "allowance", "open_groups", "ready_groups", "groups_per_step", "timeout_s")
LATEST_STEPS = 20
"""Latest steps of a pool over which its step time is averaged."""
LATEST_OF_ALL_POOLS = 50 * LATEST_STEPS
"""Latest steps of all pools that are searched for a pool's own, so that no query reads every step."""


@dataclass(frozen=True)
class Found:
    """A task that has not ended, its environment family (None: not resolved yet) and its tenant's limits."""

    tenant: str
    task: WaitingTask
    family: str | None
    limits: Limits
    over_budget: bool
    """Whether a budget has paused the task."""


async def waiting_task(connection: AsyncConnection, tenant: str | None, task: str) -> Found | None:
    """The task if it has not ended; None if the tenant has no such live task. `tenant`: None for any."""
    own = (groups.c.task == tasks.c.id, IN_TRAINING, groups.c.state == GroupState.OPEN)
    ready = select(func.count()).where(groups.c.task == tasks.c.id, groups.c.state == GroupState.READY)
    oldest_s = select(func.extract("epoch", func.now() - func.min(groups.c.admitted_at)).cast(Double)).where(*own)
    batched_at = select(steps.c.batched_at).where(steps.c.task == tasks.c.id, steps.c.state == StepState.BATCHED)
    planned = select(func.count()).where(groups.c.task == tasks.c.id, not_(IN_TRAINING), in_state(groups.c.state, GroupState.PLANNED))
    statement = (
        select(
            tasks.c.tenant, tasks.c.pool, tasks.c.family, tasks.c.state, tasks.c.accepted_at, tasks.c.group_size, tasks.c.trajectory_tokens,
            tasks.c.over_budget, tasks.c.groups_per_step, tasks.c.spec["environment"]["name"].astext.label("environment"),
            tasks.c.spec["limits"]["episode_timeout_s"].as_float().label("timeout_s"),
            (func.greatest(allowance_of(tasks.c), 0) + planned.scalar_subquery()).label("allowance"),
            select(func.count()).where(*own).scalar_subquery().label("open_groups"),
            ready.scalar_subquery().label("ready_groups"),
            oldest_s.scalar_subquery().label("oldest_s"),
            batched_at.scalar_subquery().label("batched_at"),
            *(limit_of(name).label(name) for name in (*IN_FLIGHT, *USED_UP)),
            *used_up(),
        )
        .select_from(tasks.join(WITH_LIMITS, tenants.c.id == tasks.c.tenant))
        .where(tasks.c.id == task, tasks.c.state.in_(LIVE))
    )  # fmt: skip
    if tenant is not None:
        statement = statement.where(tasks.c.tenant == tenant)
    row = (await connection.execute(statement)).first()
    if row is None:
        return None
    found = WaitingTask(
        **{name: getattr(row, name) for name in _AS_FOUND},
        is_accepted=row.state != TaskState.SUBMITTED,
        is_paused=row.state == TaskState.PAUSED,
        group=Load(row.group_size, float(row.group_size * row.trajectory_tokens)),
        oldest_s=row.oldest_s or 0.0,
        queue=None if row.batched_at is None else await _queue(connection, row.pool, row.batched_at),
    )
    return Found(row.tenant, found, row.family, _limits(row), row.over_budget)


def _limits(row: Any) -> Limits:
    """Limits of the tenant, from a row of `waiting_task`'s query."""
    values = row._mapping
    used: list[tuple[Limit, int, int]] = [(name, values[name], values[f"used_{name}"]) for name in USED_UP if values[name] is not None]
    in_flight = InFlightLimits(*(values[name] for name in IN_FLIGHT))
    return Limits(used, in_flight, row.tenant)


async def _queue(connection: AsyncConnection, pool: str, batched_at: object) -> TrainerQueue:
    """Number of the pool's steps sent before `batched_at`, and the mean seconds of its latest steps."""
    of_pool = steps.join(tasks, tasks.c.id == steps.c.task)
    before = (
        select(func.count())
        .select_from(of_pool)
        .where(tasks.c.pool == pool, in_state(steps.c.state, StepState.BATCHED), steps.c.batched_at < batched_at)
    )
    seconds = func.extract("epoch", steps.c.finished_at - steps.c.started_at).cast(Double).label("seconds")
    recent = (
        select(steps.c.task, seconds, steps.c.trained_at)
        .where(in_state(steps.c.state, StepState.TRAINED))
        .order_by(steps.c.trained_at.desc())
        .limit(LATEST_OF_ALL_POOLS)
        .subquery()
    )
    latest = (
        select(recent.c.seconds)
        .select_from(recent.join(tasks, tasks.c.id == recent.c.task))
        .where(tasks.c.pool == pool)
        .order_by(recent.c.trained_at.desc())
        .limit(LATEST_STEPS)
        .subquery()
    )
    row = (await connection.execute(select(before.scalar_subquery(), select(func.avg(latest.c.seconds)).scalar_subquery()))).one()
    return TrainerQueue(row[0], row[1])


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
    """Why the task waits; None if nothing holds it. `tenant`: None for any. `capacities`: admission's capacity by pool.

    `shared`: pools with executors on shared accelerators. `troubles`: failing processes, which the cause's sentence names.
    Raises: LookupError if the tenant has no such task, or the task has ended.
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
    """The cause, with sentences about services that are failing now, which may be its origin; without a cause, they are the cause."""
    named = [one for one in troubles if one.service in TAKERS.values()]
    if not named:
        return cause
    sentences = "; ".join(one.sentence for one in named)
    if cause is None:
        return Cause(Kind.NO_REPLICA, len(named), sentences)
    return replace(cause, sentence=f"{cause.sentence}; {sentences}")


async def _over_budget(connection: AsyncConnection, tenant: str, task: str) -> OverBudget | None:
    """The budget that has paused the task; None once the budget was raised, so that the task is about to resume."""
    purse = (await budgets.standings(connection, [tenant])).purses.get(tenant)
    waiting = next((one for one in await budgets.waiting_tasks(connection, [tenant]) if one.task == task), None)
    if purse is None or waiting is None:
        return None
    objection = purse.objection(waiting.pool, waiting.bound, evaluates=waiting.evaluates)
    return OverBudget(float(objection[0].amount), objection[1]) if objection else None


async def _checks(connection: AsyncConnection, found: Found, reports: Sequence[ReplicaReport]) -> int | None:
    """Value of `WaitingTask.checks` for the task."""
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
    of_pool = [report for report in reports if report.service == "rollout" and report.pool == found.task.pool]
    samplers = [report for report in of_pool if report.sequences]  # not those that only serve
    serving = [report for report in reports if report.service == "env" and _serves(found, report)]
    trainers = [report for report in reports if report.service == "trainer" and report.pool == found.task.pool]
    return Replicas(
        samplers=len(samplers),
        environments=len(serving),
        trainers=len(trainers),
        sequences=sum(report.sequences for report in samplers),
        sampled=sum(report.busy.get("sequences", report.sequences) for report in samplers),
        withheld=sum(report.busy.get(WITHHELD, 0.0) for report in samplers),
    )


def _full_queue(full: FullStream, reports: Sequence[ReplicaReport]) -> FullQueue:
    """The full stream with the service that must consume its oldest message, and the live replicas of that service."""
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
