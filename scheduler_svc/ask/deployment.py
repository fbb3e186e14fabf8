"""Answers about the deployment: what a task may name."""

from common.messages import AskDeployment, EnvironmentsAnswer, PoolOffer, PoolsAnswer
from scheduler_svc.ask.question import Question, page
from scheduler_svc.store.asked import packages, reports

MOST = 200
"""Maximum packages of a page."""
NO_SANDBOX = "none: tasks that need one are refused"


async def answer_envs(question: Question, request: AskDeployment) -> EnvironmentsAnswer:
    async with question.reading() as connection:
        found = await reports.live_environment_services(connection)
        families = {family for report in found for family in report.families}
        own = await packages.packages_after(connection, question.tenant, families, after=request.after, most=MOST)
    names, kept = {name for report in found for name in report.environments}, page(own)
    return EnvironmentsAnswer(
        environments=sorted(names),
        sandboxes=sorted({report.sandbox or NO_SANDBOX for report in found}),
        packages=kept,
        has_more=len(kept) < len(own) or len(own) == MOST,
    )


async def answer_pools(question: Question, _: AskDeployment) -> PoolsAnswer:
    offers = [
        PoolOffer(
            name=name,
            model=pool.model,
            context_tokens=pool.context_tokens,
            max_rank=pool.max_rank,
            adapters=pool.adapters,
            sequences=pool.sequences,
            profile=pool.profile,
        )
        for name, pool in sorted(question.sources.pools.items())
    ]
    return PoolsAnswer(pools=offers)
