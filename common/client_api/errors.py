"""Errors of the SDK, and checks before anything is sent, names that a tenant gives included. `marlaas.client` re-exports them."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import JsonValue

from common.errors import MarlaasError, Reject
from common.messages import Event
from common.messages.tenancy.aliases import ALIAS_PATTERN, MAX_ALIAS_CHARS
from common.spec import LETTERS, TASK_ID_PATTERN, NotStorable, check_fields


class ClientError(MarlaasError):
    """The request cannot be done; the text says why."""


class TaskRejected(ClientError):
    """The task was refused; `reasons` say what to change."""

    def __init__(self, task: str, reasons: list[str], *, is_storable: bool = True) -> None:
        """`is_storable`: whether a message can carry the task."""
        super().__init__("\n".join([f"task {task} was rejected:", *(f"  {reason}" for reason in reasons)]))
        self.task = task
        self.reasons = reasons
        self.is_storable = is_storable


class NoAnswer(ClientError):
    """NATS or the scheduler does not answer."""


class Unanswered(NoAnswer):
    """NATS has stored the submission of `task`; a scheduler answers it later."""

    def __init__(self, task: str, timeout_s: float) -> None:
        super().__init__(
            f"the scheduler does not answer: task {task} was neither accepted nor rejected within {timeout_s:.0f} s;"
            f" it is not lost: look at `marlaas status` later, or resubmit it with the same id"
        )
        self.task = task


class WrongState(ClientError):
    """The task has ended, or has not, and what was requested needs the other."""


class WrongQuestion(ClientError):
    """The scheduler refuses a question; `reason` begins with the field that is wrong."""

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(f"the scheduler refuses the question '{verb}': {reason}")
        self.reason = reason


class NotPermitted(ClientError):
    """NATS refuses what the key's role does not permit."""


class TooManyJobs(ClientError):
    """As many jobs wait as may; the same one may be sent later."""


class UnknownTask(ClientError):
    """The scheduler knows no task with this id."""

    @classmethod
    def among(cls, task: str, known: Iterable[str]) -> "UnknownTask":
        """Names the most similar of the `known` ids."""
        close = get_close_matches(task, known, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else "`marlaas ps` lists those there are"
        return cls(f"no task '{task}'; {hint}")


class WrongId(ClientError):
    """No task can have such an id."""


def check_id(task: str) -> None:
    """Raises: WrongId, saying what an id looks like."""
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        raise WrongId(f"'{task}' cannot be the id of a task: {LETTERS.format(63)}; `marlaas ps` shows those there are")


def check_spec(spec: dict[str, JsonValue]) -> None:
    """Raises: TaskRejected, with every wrong field."""
    try:
        check_fields(spec)
    except Reject as error:
        raise TaskRejected(str(spec.get("name", "?")), list(error.reasons), is_storable=not isinstance(error, NotStorable)) from None


def rejection_reasons(answer: Event) -> list[str]:
    reasons = answer.data.get("reasons", answer.data.get("reason", "no reason given"))
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else [str(reasons)]


RULE = f"letters, digits, and single '.', '_' and '-' between them, {MAX_ALIAS_CHARS} characters at most"


def is_name(text: str) -> bool:
    return len(text) <= MAX_ALIAS_CHARS and re.fullmatch(ALIAS_PATTERN, text) is not None


def check_name(text: str) -> None:
    """Raises: ClientError for what cannot be such a name, before anything is sent."""
    if not is_name(text):
        raise ClientError(f"name: {RULE}; not '{text[:100]}'")
