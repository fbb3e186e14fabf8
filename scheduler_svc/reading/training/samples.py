"""Answers about samples: which steps have some, and those of one. Read from their stream: PostgreSQL has no attempts."""

from common.messages import AskSamples, SamplesAnswer
from scheduler_svc.tenancy.question import Question, Unknown
from scheduler_svc.training.queries import versions as progress


async def answer_samples(question: Question, request: AskSamples) -> SamplesAnswer:
    """Raises: Unknown."""
    async with question.reading() as connection:
        task = await progress.asked_task(connection, question.tenant, request.task)
    if task is None:
        raise question.unknown(request.task)
    stored = question.sources.samples
    steps = await stored.steps(task.id)
    wanted = request.step if request.step is not None else max(steps, default=None)
    if wanted is None:
        return SamplesAnswer(task=task.id, steps=[], samples=None)
    found = await stored.of_step(task.spec.pool, task.id, wanted)
    if found is None or found.task != task.id:
        raise Unknown(f"task {task.id} has no samples of step {wanted}; steps with some: {_named(steps)}")
    return SamplesAnswer(task=task.id, steps=steps, samples=found)


def _named(steps: list[int]) -> str:
    return f"{', '.join(map(str, steps[:3]))} … {steps[-1]}" if len(steps) > 4 else ", ".join(map(str, steps)) or "none"
