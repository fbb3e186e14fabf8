"""Answers about shared accelerators: executors, slices, moves and traces."""

import asyncio

from common.errors import Reject
from common.messages import (
    AskExecutors,
    AskMoves,
    AskSlices,
    AskTrace,
    ExecutorsAnswer,
    MovesAnswer,
    SlicesAnswer,
    TraceAnswer,
    TracedTask,
)
from common.messages.accelerators import MAX_STEPS
from common.messages.asks import PAGE_BYTES
from scheduler_svc.accelerators.queries import asked as accelerators
from scheduler_svc.tenancy.question import Question, page


async def answer_executors(question: Question, request: AskExecutors) -> ExecutorsAnswer:
    async with question.reading() as connection:
        found = await accelerators.executors(connection, request.pool, for_operator=question.tenant is None)
    deepest = {name: pool.deepest_tier for name, pool in question.sources.pools.items()}
    return ExecutorsAnswer(executors=page([one.model_copy(update={"deepest": deepest.get(one.pool)}) for one in found]))


async def answer_slices(question: Question, request: AskSlices) -> SlicesAnswer:
    """A tenant gets the slices that served its tasks, with its own shares."""
    async with question.reading() as connection:
        found = await accelerators.slices(connection, question.tenant, request)
    kept = page(found)
    has_more = len(kept) < len(found) or len(found) == request.most
    return SlicesAnswer(slices=kept, before=kept[-1].number if has_more else None)


async def answer_moves(question: Question, _: AskMoves) -> MovesAnswer:
    """Raises: Reject for a tenant."""
    _require_operator(question, "moves")
    async with question.reading() as connection:
        return MovesAnswer(moves=page(await accelerators.moves(connection)))


async def answer_trace(question: Question, request: AskTrace) -> TraceAnswer:
    """Raises: Reject for a tenant."""
    _require_operator(question, "trace")
    kept, cursor, size = list[TracedTask](), request.cursor, 0
    while size < PAGE_BYTES // 2:
        async with question.reading() as connection:
            rows = await accelerators.steps_of_next(connection, after=cursor, since_s=request.since_s, most=MAX_STEPS)
        if not rows:
            return TraceAnswer(tasks=kept, cursor=None)
        one = await asyncio.to_thread(accelerators.traced_task, rows)
        kept.append(one)
        cursor, size = one.task, size + len(one.model_dump_json())
    return TraceAnswer(tasks=kept, cursor=cursor)


def _require_operator(question: Question, verb: str) -> None:
    if question.tenant is not None:
        raise Reject(f"{verb}: only operators may ask this; `executors` and `slices` have what concerns tenant '{question.tenant}'")
