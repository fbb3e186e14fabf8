"""Answers what a task waits for."""

from common.messages import AskTask, WhyAnswer
from common.task_states import ENDED
from scheduler_svc.ask.question import Question
from scheduler_svc.lifecycle.waiting import why
from scheduler_svc.store.asked import statuses

NOTHING = "nothing holds it: its next group or step is about to leave"


async def answer_why(question: Question, request: AskTask) -> WhyAnswer:
    """Raises: Unknown."""
    sources = question.sources
    async with question.reading() as connection:
        try:
            cause = await why(connection, question.tenant, request.task, sources.replicas(), sources.capacities())
        except LookupError:  # it has ended, or is unknown
            status = await statuses.status(connection, question.tenant, request.task)
            if status is None or status.state not in ENDED:
                raise question.unknown(request.task) from None
            return WhyAnswer(task=request.task, cause=None, number=None, sentence=f"it is {status.state}: it waits for nothing")
    if cause is None:
        return WhyAnswer(task=request.task, cause=None, number=None, sentence=NOTHING)
    return WhyAnswer(task=request.task, cause=cause.kind.value, number=cause.number, sentence=cause.sentence)
