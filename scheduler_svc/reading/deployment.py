"""Answers about the deployment: environments, pools and replicas."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages import (
    AskDeployment,
    EnvironmentsAnswer,
    PoolOffer,
    PoolsAnswer,
    ReplicaReport,
    ReplicasAnswer,
    ReplicasOf,
    TroubleOf,
    from_json,
)
from common.messages.status import ERROR
from scheduler_svc.accelerators import asked as accelerators
from scheduler_svc.base.tables import replicas
from scheduler_svc.tenancy.question import Question, page
from scheduler_svc.uploads import own_environments

PAGE_SIZE = 200
"""Maximum packages per page."""

NO_SANDBOX = "none: tasks that need one are refused"

ALIVE = text("interval '15 seconds'")
"""Maximum age of the last report of a live replica, as in the view `stage_health`."""


async def answer_envs(question: Question, request: AskDeployment) -> EnvironmentsAnswer:
    async with question.reading() as connection:
        found = await _live_environment_services(connection)
        families = {family for report in found for family in report.families}
        own = await own_environments.packages_after(connection, question.tenant, families, after=request.after, most=PAGE_SIZE)
    names = {name for report in found for name in report.environments}
    kept, has_more = page(own, PAGE_SIZE)
    return EnvironmentsAnswer(
        environments=sorted(names),
        sandboxes=sorted({report.sandbox or NO_SANDBOX for report in found}),
        packages=kept,
        has_more=has_more,
    )


async def answer_pools(question: Question, _: AskDeployment) -> PoolsAnswer:
    shared = {name for name, pool in question.sources.pools.items() if pool.samplers_on}
    states: dict[str, accelerators.PoolState] = {}
    if shared:
        async with question.reading() as connection:
            states = await accelerators.pool_states(connection, shared)
    offers = [
        PoolOffer(
            name=name,
            model=pool.model_name,
            revision=pool.revision,
            context_tokens=pool.context_tokens,
            max_rank=pool.max_rank,
            adapters=pool.adapters,
            sequences=pool.sequences,
            profile=pool.profile,
            serves=pool.serving is not None,
            serving_sequences=pool.serving.sequences if pool.serving else 0,
            ttft_ms=pool.serving.ttft_ms if pool.serving else None,
            **(vars(states[name]) if name in states else {}),
        )
        for name, pool in sorted(question.sources.pools.items())
    ]
    return PoolsAnswer(pools=offers)


async def answer_replicas(question: Question, _: AskDeployment) -> ReplicasAnswer:
    """Live replicas by service and pool. Replicas' names, which may be host names, are only for operators."""

    def kind(report: ReplicaReport) -> tuple[str, str]:
        return report.service, report.pool or ""

    found = groupby(sorted(question.sources.replicas(), key=kind), kind)
    is_named = question.tenant is None
    troubles = [one for one in map(partial(seen_by, question.tenant), question.sources.troubles()) if one is not None]
    return ReplicasAnswer(replicas=[_replicas_of([*reports], is_named=is_named) for _, reports in found], troubles=troubles)


def seen_by(tenant: str | None, trouble: TroubleOf) -> TroubleOf | None:
    """The part of a trouble that a tenant may see: that a service is not ready. Host names, causes and recovered troubles are for
    operators."""
    if tenant is None:
        return trouble
    if trouble.state == "recovered":
        return None
    return trouble.model_copy(update={"replica": "", "cause": ""})


def _replicas_of(reports: Sequence[ReplicaReport], *, is_named: bool) -> ReplicasOf:
    loads = sorted({load for report in reports for load in report.busy})
    return ReplicasOf(
        service=reports[0].service,
        pool=reports[0].pool,
        replicas=len(reports),
        sequences=sum(report.sequences for report in reports),
        kv_tokens=sum(report.kv_tokens for report in reports),
        busy={load: (max if load.endswith(ERROR) else sum)(report.busy.get(load, 0.0) for report in reports) for load in loads},
        names=sorted(report.replica for report in reports) if is_named else [],
    )


async def _live_environment_services(connection: AsyncConnection) -> list[ReplicaReport]:
    """Last reports of live replicas of the environment service."""
    statement = select(replicas.c.report).where(replicas.c.service == "env", replicas.c.seen_at > func.now() - ALIVE)
    return [from_json(ReplicaReport, report) for report in (await connection.execute(statement.order_by(replicas.c.id))).scalars()]
