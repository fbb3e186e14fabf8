"""The scheduler's answers to jobs: events, for which a client listens before it publishes the job."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from pydantic import JsonValue

from common.bus import Outgoing
from common.client_api.errors import ClientError, NoAnswer, rejection_reasons
from common.client_api.protocol import AnyDoor
from common.errors import Retry
from common.messages import Event

RECHECK_S = 5.0
"""Seconds without an event after which a client asks for one that was lost on its way."""
REPEATED_TIMEOUT_S = 3.0
"""Seconds to wait for a rejection when a task is resubmitted under its id."""


async def answer_to(
    door: AnyDoor,
    out: Outgoing,
    tenant: str,
    task: str,
    is_answer: Callable[[Event], bool],
    timeout_s: float,
    *,
    first: Sequence[Outgoing] = (),
) -> Event:
    """Publish a job and wait for its answer, an event of the task; "none" for jobs about no task. `first`: jobs to publish before it,
    each of which may be what is answered. Raises: NoAnswer; ClientError."""
    try:
        async with asyncio.timeout(timeout_s), door.listening(tenant, task) as live:
            before = await door.last_event(task, tenant=tenant)
            for job in (*first, out):
                await door.publish(job)
            while True:
                event = await door.next_event(live, RECHECK_S)
                if event is not None and (event.number or before + 1) > before and is_answer(event):
                    return event
                if event is None:
                    with suppress(NoAnswer):
                        async for stored in door.events_after(task, before, tenant=tenant):
                            if is_answer(stored):
                                return stored
    except (TimeoutError, Retry):
        pass
    raise NoAnswer(f"the scheduler does not answer {out.subject} within {timeout_s:.0f} s; it is done later if NATS took it")


async def answer_to_request(door: AnyDoor, out: Outgoing, tenant: str, request: str, timeout_s: float) -> Event:
    """Publish a job about no task and wait for its answer, which repeats the job's `request`. Raises: NoAnswer; ClientError."""
    return await answer_to(door, out, tenant, "none", lambda event: event.data.get("request") == request, timeout_s)


async def result_of(door: AnyDoor, out: Outgoing, tenant: str, request: str, timeout_s: float) -> dict[str, JsonValue]:
    """Data of that answer, without `request`. Raises: ClientError with the reasons of a refusal; NoAnswer."""
    answer = await answer_to_request(door, out, tenant, request, timeout_s)
    require_accepted(answer)
    return {name: value for name, value in answer.data.items() if name != "request"}


def require_accepted(
    answer: Event, refusal: type[ClientError] = ClientError, by_code: Mapping[object, type[ClientError]] = MappingProxyType({})
) -> None:
    """Raises: the error of a refusal's `code`, else `refusal`, with the reasons."""
    if "reasons" in answer.data:
        raise by_code.get(answer.data.get("code"), refusal)("; ".join(rejection_reasons(answer)))


async def answer_to_submission(door: AnyDoor, out: Outgoing, tenant: str, task: str, *, is_repeated: bool, stored: asyncio.Event) -> Event:
    """Publish a submission; returns its event, accepted or rejected. `is_repeated`: the id may have been submitted before.
    `stored`: set once NATS has the job.

    The scheduler does not answer the same submission twice: then the first answer stands. Raises: NoAnswer; ClientError; Unavailable.
    """
    async with door.listening(tenant, task) as live:
        before = 0
        if is_repeated:
            with suppress(NoAnswer):  # jobs are taken while the scheduler is unavailable
                before = await door.last_event(task, tenant=tenant)
        await door.publish(out)
        stored.set()
        began, recheck_s = time.monotonic(), REPEATED_TIMEOUT_S if before else RECHECK_S
        while True:
            event = await door.next_event(live, recheck_s)
            if event is not None and event.event in ("accepted", "rejected") and (event.number or before + 1) > before:
                return event
            if time.monotonic() - began >= recheck_s:
                began = time.monotonic()
                with suppress(NoAnswer):
                    answers = [one async for one in door.events_after(task, 0, tenant=tenant) if one.event in ("accepted", "rejected")]
                    if answers:
                        return answers[-1]
