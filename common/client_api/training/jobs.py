"""Jobs about a task: preview and submit; for an existing task also cancel, pause, resume, delete, and resend (a dead letter)."""

import asyncio
import hashlib
import json
import re
import secrets
from collections.abc import Callable
from contextlib import suppress

from pydantic import JsonValue

from common import streams
from common.bus import Outgoing
from common.client_api.asking import answer_to, answer_to_request, answer_to_submission
from common.client_api.errors import ClientError, NoAnswer, TaskRejected, Unanswered, WrongState, check_id, check_spec, rejection_reasons
from common.client_api.protocol import AnyDoor, Verb
from common.client_api.training.download import whole_number
from common.client_api.training.progress import Failure
from common.errors import Retry
from common.messages import ControlTask, Event, PreviewTask, ResendLetter, SubmitTask, TaskStatus
from common.resilience.event_loop import own_turn
from common.spec import NAME_PATTERN, TaskSpec, new_task_id
from common.task_states import ENDED

REASONS_S = 5.0
"""Maximum seconds to wait for the scheduler's reasons against a task with invalid fields."""


def given_values(spec: TaskSpec | dict[str, JsonValue]) -> tuple[dict[str, JsonValue], str, str]:
    """Given values of a task, its tenant, and its name. Raises: TaskRejected, listing every invalid field."""
    if isinstance(spec, TaskSpec):
        return spec.model_dump(mode="json", exclude_unset=True), spec.tenant, spec.name
    check_spec(spec)
    return spec, str(spec["tenant"]), str(spec["name"])


def is_readable(spec: dict[str, JsonValue], error: TaskRejected) -> bool:
    """Whether the scheduler can read, and so check, a task despite its invalid fields. `error`: error of the local check."""
    tenant = spec.get("tenant")
    return error.is_storable and isinstance(tenant, str) and re.fullmatch(NAME_PATTERN, tenant) is not None


async def _checked(door: AnyDoor, spec: TaskSpec | dict[str, JsonValue], timeout_s: float) -> tuple[dict[str, JsonValue], str, str]:
    """As `given_values`. Raises: TaskRejected, including the scheduler's reasons if it is reachable."""
    try:
        return given_values(spec)
    except TaskRejected as error:
        reasons = error.reasons
        if isinstance(spec, dict) and is_readable(spec, error):
            await own_turn()  # the task may be large, and encoding it takes as long as checking it
            with suppress(ClientError, Retry):
                reasons = rejection_reasons(await _asked(door, spec, str(spec["tenant"]), timeout_s=min(REASONS_S, timeout_s)))
        raise TaskRejected(error.task, reasons or error.reasons) from None


async def submit(door: AnyDoor, spec: TaskSpec | dict[str, JsonValue], task: str | None, *, timeout_s: float) -> Event:
    """Submit a task; returns its event `accepted`. `task`: its id, which may have been submitted before; None: a new id.

    Raises: WrongId; TaskRejected; Unanswered if NATS has stored the job and no scheduler has answered; NoAnswer otherwise.
    """
    if task is not None:
        check_id(task)
    given, tenant, name = await _checked(door, spec, timeout_s)
    is_repeated = task is not None
    task = task or new_task_id(name, tenant)
    digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()[:16]
    out = Outgoing(streams.job("submit", tenant), SubmitTask(task=task, tenant=tenant, spec=given), f"submit:{task}:{digest}")
    stored = asyncio.Event()
    try:
        async with asyncio.timeout(timeout_s):
            answer = await answer_to_submission(door, out, tenant, task, is_repeated=is_repeated, stored=stored)
    except (TimeoutError, Retry):
        if stored.is_set():
            raise Unanswered(task, timeout_s) from None
        raise NoAnswer(f"NATS did not take task {task} within {timeout_s:.0f} s; submit it again with the same id") from None
    except NoAnswer:
        raise (Unanswered(task, timeout_s) if stored.is_set() else NoAnswer(f"NATS did not take task {task}")) from None
    if answer.event == "rejected":
        raise TaskRejected(task, rejection_reasons(answer))
    return answer


async def preview(door: AnyDoor, spec: TaskSpec | dict[str, JsonValue], *, timeout_s: float) -> Event:
    """The event `previewed`: the task as it would be accepted, and the reasons against it. Raises: TaskRejected for invalid fields;
    NoAnswer."""
    given, tenant, _ = await _checked(door, spec, timeout_s)
    return await _asked(door, given, tenant, timeout_s=timeout_s)


async def _asked(door: AnyDoor, given: dict[str, JsonValue], tenant: str, *, timeout_s: float) -> Event:
    request = secrets.token_hex(6)
    job = PreviewTask(tenant=tenant, request=request, spec=given)
    return await answer_to_request(door, "preview", tenant, job, request, timeout_s)


def check_live(verb: Verb, status: TaskStatus) -> None:
    """Raises: WrongState if the task has ended."""
    if status.state in ENDED:
        raise WrongState(f"task {status.task} is {status.state} already; there is nothing to {verb}")


def control_job(verb: Verb, status: TaskStatus, reason: str) -> Outgoing:
    """The job that controls a task. Raises: WrongState if the task has ended."""
    check_live(verb, status)
    message = ControlTask(task=status.task, tenant=status.tenant, reason=reason)
    return Outgoing(streams.job(verb, status.tenant), message, f"{verb}:{status.task}:{secrets.token_hex(6)}")


async def control(door: AnyDoor, verb: Verb, status: TaskStatus, reason: str) -> None:
    """Publish a control job without waiting for its effect. Raises: WrongState; ClientError; NoAnswer."""
    try:
        await door.publish(control_job(verb, status, reason))
    except Retry as error:
        raise NoAnswer(f"could not {verb} task {status.task}: {error}") from None


async def delete_task(door: AnyDoor, status: TaskStatus, *, timeout_s: float) -> int:
    """Delete a task that has ended; returns the bytes freed. Raises: WrongState if it has not ended, or has an alias; ClientError;
    NoAnswer."""
    if status.state not in ENDED:
        raise WrongState(f"task {status.task} is {status.state}; end it first with `marlaas cancel {status.task}`, then delete it")
    message = ControlTask(task=status.task, tenant=status.tenant)
    out = Outgoing(streams.job("delete", status.tenant), message, f"delete:{status.task}:{secrets.token_hex(6)}")
    answer = await _answered(door, out, status.tenant, status.task, _is_about_deletion, timeout_s, refusal=WrongState)
    return whole_number(answer, "bytes")


async def resend(door: AnyDoor, failure: Failure, *, timeout_s: float) -> None:
    """Resend the message of a dead letter. Raises: ClientError if the message is no longer needed; NoAnswer."""
    tenant, letter = failure.sender, failure.letter
    out = Outgoing(streams.job("resend", tenant), ResendLetter(tenant=tenant, letter=letter), f"resend:{letter}:{secrets.token_hex(6)}")
    await _answered(door, out, tenant, failure.task or "none", lambda event: event.data.get("letter") == letter, timeout_s)


def _is_about_deletion(event: Event) -> bool:
    return event.event == "deleted" or event.data.get("verb") == "delete"


async def _answered(
    door: AnyDoor,
    out: Outgoing,
    tenant: str,
    task: str,
    is_answer: Callable[[Event], bool],
    timeout_s: float,
    *,
    refusal: type[ClientError] = ClientError,
) -> Event:
    """Publish a job; returns its answer. Raises: `refusal`, with the reasons; ClientError; NoAnswer."""
    answer = await answer_to(door, out, tenant, task, is_answer, timeout_s)
    if answer.event == "rejected":
        raise refusal("; ".join(rejection_reasons(answer)))
    return answer
