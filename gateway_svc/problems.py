"""Problem: the answer to a failed request (RFC 9457), and the mapping from errors to problems. Needs no HTTP library."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic_core import ErrorDetails

from common.access.roles import JOBS_OF_ROLE, ROLES, may_ask
from common.client_api.asking import UnknownHere, UnknownNamed
from common.client_api.errors import (
    Changed,
    ClientError,
    NoAnswer,
    NotPermitted,
    RefusedChange,
    TaskRejected,
    TooManyJobs,
    UnknownTask,
    WrongId,
    WrongQuestion,
    WrongState,
)
from common.errors import Fatal, KeyRefused, Reject, Retry
from common.formats.wrong_values import wrong_fields
from common.messages.tenancy.access import Role
from gateway_svc.access import Unauthorized

RETRY_AFTER_S = 2
"""Seconds after which to retry a request that failed because NATS or the scheduler was unavailable."""


@dataclass(frozen=True)
class FieldError:
    field: str
    """Path in the body, such as `algorithm.group_size`, or name of a parameter; empty if the whole request is meant."""
    reason: str


@dataclass
class Problem(Exception):
    """A failed request."""

    status: int
    title: str
    """Title of this kind of problem, equal for every occurrence."""
    detail: str = ""
    code: str = ""
    """Identifier of the problem, for programs."""
    errors: Sequence[FieldError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def unauthorized() -> Problem:
    """401 with the same text for every invalid key, so that it does not reveal which keys are known."""
    detail = "give a valid key: 'Authorization: Bearer mk-…'"
    return Problem(401, "No valid key", detail, "unauthorized", headers={"WWW-Authenticate": 'Bearer realm="marlaas"'})


def not_found(detail: str = "there is no such resource, or the key does not show it") -> Problem:
    """404. The default is the same for a missing resource and for another tenant's."""
    return Problem(404, "Not found", detail, "not_found")


def forbidden(roles: Sequence[Role], reason: str = "") -> Problem:
    """403. `reason`: why these roles are needed, if the request does not show it."""
    names = " or ".join(filter(None, [", ".join(roles[:-1]), roles[-1]]))
    return Problem(403, "Not permitted", f"this needs a key of the role {names}{f': {reason}' if reason else ''}", "forbidden")


def unavailable(detail: str) -> Problem:
    return Problem(503, "Unavailable", detail, "unavailable", headers={"Retry-After": str(RETRY_AFTER_S)})


def invalid(*errors: FieldError, detail: str = "") -> Problem:
    shown = detail or "; ".join(f"{error.field}: {error.reason}" if error.field else error.reason for error in errors)
    return Problem(400, "Invalid request", shown, "invalid", errors)


def wrong_fields_of(details: Sequence[ErrorDetails]) -> Problem:
    """Problem for a body or for parameters that pydantic finds invalid."""
    return invalid(*(FieldError(field, reason) for field, reason in wrong_fields(details)))


def rejected(reasons: Sequence[str]) -> Problem:
    """Problem for a rejected task; a reason that begins with a field's path is about that field."""
    return invalid(*map(_field_error, reasons))


def _field_error(reason: str) -> FieldError:
    name, colon, rest = reason.partition(": ")
    is_path = bool(colon) and all(part.replace("_", "").isalnum() for part in name.split("."))
    return FieldError(name, rest) if is_path else FieldError("", reason)


def problem_of(error: Exception) -> Problem | None:
    """The problem for an error of the door; None for a bug."""
    match error:
        case Problem():
            return error
        case Unauthorized() | KeyRefused():
            return unauthorized()
        case UnknownHere() | UnknownTask() | WrongId():
            return not_found(str(error)) if isinstance(error, UnknownNamed) else not_found()
        case NotPermitted():
            return Problem(403, "Not permitted", "the role of this key does not permit it", "forbidden")
        case WrongQuestion():
            return rejected([error.reason])
        case Changed():
            return Problem(412, "Precondition failed", str(error), "precondition_failed")
        case TaskRejected() | RefusedChange():
            return rejected(error.reasons)
        case WrongState():
            return Problem(409, "Wrong state", str(error), "wrong_state")
        case TooManyJobs():
            return Problem(429, "Too many jobs", str(error), "too_many_jobs", headers={"Retry-After": str(RETRY_AFTER_S)})
        case NoAnswer() | Retry() | Fatal():  # Fatal for the caller's connection: its key was revoked meanwhile
            return unavailable("the scheduler or NATS does not answer; ask again later")
        case ClientError() | Reject():
            return invalid(FieldError("", str(error)))
        case _:
            return None


def roles_of_job(verb: str) -> list[Role]:
    """Roles that may send this job."""
    return [role for role in ROLES if verb in JOBS_OF_ROLE[role]]


def roles_of_question(verb: str) -> list[Role]:
    """Roles that may ask this question."""
    return [role for role in ROLES if may_ask(role, verb)]
