"""Errors of the SDK, and checks before a request is sent, for example of names that a tenant chooses. `marlaas.client` re-exports them."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import JsonValue

from common.errors import MarlaasError, Reject
from common.messages import Event
from common.messages.tenancy.named import MAX_NAME_CHARS, NAME_PATTERN
from common.spec import LETTERS, TASK_ID_PATTERN, NotStorable, check_fields


class ClientError(MarlaasError):
    """The request failed or is invalid; the text says why."""


class TaskRejected(ClientError):
    """The task was refused; `reasons` list the necessary changes."""

    def __init__(self, task: str, reasons: list[str], *, is_storable: bool = True) -> None:
        """`is_storable`: whether a message can carry the task."""
        super().__init__("\n".join([f"task {task} was rejected:", *(f"  {reason}" for reason in reasons)]))
        self.task = task
        self.reasons = reasons
        self.is_storable = is_storable


class NoAnswer(ClientError):
    """NATS or the scheduler does not answer."""


class Unanswered(NoAnswer):
    """NATS has stored the submission of `task`; a scheduler will answer it later."""

    def __init__(self, task: str, timeout_s: float) -> None:
        super().__init__(
            f"the scheduler does not answer: task {task} was neither accepted nor rejected within {timeout_s:.0f} s;"
            f" it is not lost: look at `marlaas status` later, or resubmit it with the same id"
        )
        self.task = task


class WrongState(ClientError):
    """The task is in the wrong state for the request: it has ended, or it has not ended yet."""


class WrongQuestion(ClientError):
    """The scheduler refuses a question; `reason` starts with the invalid field."""

    def __init__(self, verb: str, reason: str) -> None:
        super().__init__(f"the scheduler refuses the question '{verb}': {reason}")
        self.reason = reason


class NotPermitted(ClientError):
    """NATS refuses a request that the key's role does not permit."""


class TooManyJobs(ClientError):
    """The maximum number of jobs is waiting; the same job may be sent later."""


class RefusedChange(ClientError):
    """A change of a named resource is refused; the text starts with the invalid field."""

    @property
    def reasons(self) -> list[str]:
        return [str(self)]


class Changed(ClientError):
    """A resource is not in the state that a change expects; for example, an alias names another version, or does not exist."""


class UnknownTask(ClientError):
    """The scheduler knows no task with this id."""

    @classmethod
    def among(cls, task: str, known: Iterable[str]) -> "UnknownTask":
        """Error that suggests the most similar of the `known` ids."""
        close = get_close_matches(task, known, n=1, cutoff=0.5)
        hint = f"did you mean '{close[0]}'?" if close else "`marlaas ps` lists those there are"
        return cls(f"no task '{task}'; {hint}")


class WrongId(ClientError):
    """The text cannot be a task's id."""


def check_id(task: str) -> None:
    """Raises: WrongId, describing the format of an id."""
    if re.fullmatch(TASK_ID_PATTERN, task) is None:
        raise WrongId(f"'{task}' cannot be the id of a task: {LETTERS.format(63)}; `marlaas ps` shows those there are")


def check_spec(spec: dict[str, JsonValue]) -> None:
    """Raises: TaskRejected, listing every invalid field."""
    try:
        check_fields(spec)
    except Reject as error:
        raise TaskRejected(str(spec.get("name", "?")), list(error.reasons), is_storable=not isinstance(error, NotStorable)) from None


def rejection_reasons(answer: Event) -> list[str]:
    reasons = answer.data.get("reasons", answer.data.get("reason", "no reason given"))
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else [str(reasons)]


RULE = f"letters, digits, and single '.', '_' and '-' between them, {MAX_NAME_CHARS} characters at most"


def is_name(text: str) -> bool:
    return len(text) <= MAX_NAME_CHARS and re.fullmatch(NAME_PATTERN, text) is not None


def check_name(text: str) -> None:
    """Raises: ClientError if `text` cannot be the name of an alias or webhook."""
    if not is_name(text):
        raise ClientError(f"name: {RULE}; not '{text[:100]}'")
