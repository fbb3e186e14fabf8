"""Answers what a task waits for."""

import asyncio
from collections.abc import Sequence
from functools import partial

from common.bus import FullStream
from common.errors import Retry
from common.messages import AskTask, WhyAnswer
from common.task_states import ENDED
from scheduler_svc.reading.deployment import seen_by
from scheduler_svc.reading.tasks import status_of
from scheduler_svc.tenancy.question import Question, Sources
from scheduler_svc.training.waiting import why

NOTHING = "nothing holds it: its next group or step is about to leave"

LOOK_S = 1.0
"""Time limit of a look at the streams."""


async def answer_why(question: Question, request: AskTask) -> WhyAnswer:
    """Raises: Unknown."""
    sources, full = question.sources, await _full_streams(question.sources)
    async with question.reading() as connection:
        try:
            shared = {name for name, pool in sources.pools.items() if pool.samplers_on or pool.trainers_on}
            seen = [one for one in map(partial(seen_by, question.tenant), sources.troubles()) if one is not None]
            capacities = sources.capacities()
            cause = await why(connection, question.tenant, request.task, sources.replicas(), capacities, full, shared=shared, troubles=seen)
        except LookupError:  # it has ended, or is unknown
            status = await status_of(connection, question.tenant, request.task)
            if status is None or status.state not in ENDED:
                raise question.unknown(request.task) from None
            return WhyAnswer(task=request.task, cause=None, number=None, sentence=f"it is {status.state}: it waits for nothing")
    if cause is None:
        return WhyAnswer(task=request.task, cause=None, number=None, sentence=NOTHING)
    return WhyAnswer(task=request.task, cause=cause.kind.value, number=cause.number, sentence=cause.sentence)


async def _full_streams(sources: Sources) -> Sequence[FullStream]:
    """Nothing while JetStream does not answer: the rest of the answer does not need it."""
    try:
        async with asyncio.timeout(LOOK_S):
            return await sources.full_streams()
    except (Retry, TimeoutError):
        return ()
