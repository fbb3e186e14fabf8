"""Jobs about a task that there is: cancel, pause, resume, delete and resend."""

import secrets
from collections.abc import Callable

from common import streams
from common.bus import Outgoing
from common.client_api.answers import answer_to
from common.client_api.errors import ClientError, NoAnswer, WrongState, rejection_reasons
from common.client_api.protocol import AnyDoor, Verb
from common.client_api.training.download import whole_number
from common.client_api.training.failures import Failure
from common.errors import Retry
from common.messages import ControlTask, Event, ResendLetter, TaskStatus
from common.task_states import ENDED


def check_live(verb: Verb, status: TaskStatus) -> None:
    """Raises: WrongState when the task has ended."""
    if status.state in ENDED:
        raise WrongState(f"task {status.task} is {status.state} already; there is nothing to {verb}")


def control_job(verb: Verb, status: TaskStatus, reason: str) -> Outgoing:
    """Raises: WrongState when the task has ended."""
    check_live(verb, status)
    message = ControlTask(task=status.task, tenant=status.tenant, reason=reason)
    return Outgoing(streams.control(verb, status.tenant), message, f"{verb}:{status.task}:{secrets.token_hex(6)}")


async def control(door: AnyDoor, verb: Verb, status: TaskStatus, reason: str) -> None:
    """Publish the job, and do not wait until it is done. Raises: WrongState; ClientError; NoAnswer."""
    try:
        await door.publish(control_job(verb, status, reason))
    except Retry as error:
        raise NoAnswer(f"could not {verb} task {status.task}: {error}") from None


async def delete_task(door: AnyDoor, status: TaskStatus, *, timeout_s: float) -> int:
    """Delete a task that has ended; bytes freed. Raises: WrongState when it has not ended, or has an alias; ClientError; NoAnswer."""
    if status.state not in ENDED:
        raise WrongState(f"task {status.task} is {status.state}; end it first with `marlaas cancel {status.task}`, then delete it")
    message = ControlTask(task=status.task, tenant=status.tenant)
    out = Outgoing(streams.control("delete", status.tenant), message, f"delete:{status.task}:{secrets.token_hex(6)}")
    answer = await _answered(door, out, status.tenant, status.task, _is_about_deletion, timeout_s, refusal=WrongState)
    return whole_number(answer, "bytes")


async def resend(door: AnyDoor, failure: Failure, *, timeout_s: float) -> None:
    """Resend the message of a dead letter. Raises: ClientError when its message is no longer needed; NoAnswer."""
    tenant, letter = failure.sender, failure.letter
    out = Outgoing(streams.resend(tenant), ResendLetter(tenant=tenant, letter=letter), f"resend:{letter}:{secrets.token_hex(6)}")
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
    """The answer. Raises: `refusal`, with its reasons; ClientError; NoAnswer."""
    answer = await answer_to(door, out, tenant, task, is_answer, timeout_s)
    if answer.event == "rejected":
        raise refusal("; ".join(rejection_reasons(answer)))
    return answer
