"""Answers about the deployment: what a task may name."""

from common.messages import AskDeployment, EnvironmentsAnswer, PoolOffer, PoolsAnswer
from scheduler_svc.ask.question import Question
from scheduler_svc.store.asked import reports

NO_SANDBOX = "none: tasks that need one are refused"


async def answer_envs(question: Question, _: AskDeployment) -> EnvironmentsAnswer:
    async with question.reading() as connection:
        found = await reports.live_environment_services(connection)
    names = {name for report in found for name in report.environments}
    return EnvironmentsAnswer(environments=sorted(names), sandboxes=sorted({report.sandbox or NO_SANDBOX for report in found}))


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
