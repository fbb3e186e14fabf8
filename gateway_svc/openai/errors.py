"""Errors in OpenAI's shape."""

import re
from collections.abc import Mapping

from pydantic import BaseModel

from common.messages.serving import Failure
from gateway_svc.problems import RETRY_AFTER_S, FieldError, Problem

TYPES = {401: "authentication_error", 402: "insufficient_quota", 403: "permission_error", 429: "rate_limit_error"}
"""Status → `type`; other statuses below 500 are `invalid_request_error`, from 500 on `server_error`."""
CODES = {"unauthorized": "invalid_api_key", "invalid": "invalid_value", "rate_limited": "rate_limit_exceeded"}
"""The gateway's own codes → OpenAI's name."""
NO_RETRY = {"x-should-retry": "false"}
"""Header that stops OpenAI's client from retrying a 409."""
RETRY_LATER = {"Retry-After": str(RETRY_AFTER_S)}
STATUSES: Mapping[Failure, tuple[int, str, Mapping[str, str]]] = {
    "invalid": (400, "invalid_value", {}),
    "context_length_exceeded": (400, "context_length_exceeded", {}),
    "version_unusable": (409, "version_unusable", NO_RETRY),
    "overdue": (503, "overdue", RETRY_LATER),
    "engine_lost": (503, "engine_lost", RETRY_LATER),
    "slow_reader": (408, "slow_reader", NO_RETRY),
    "internal": (500, "internal", {}),
}
"""Failure of sampling → status, `code`, headers."""


_FIELD = re.compile(r"([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+)*): ")
"""Matches a sampler's reason that begins with a field name."""


class ErrorOf(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    error: ErrorOf


def error_answer(problem: Problem) -> ErrorAnswer:
    """A problem in OpenAI's shape; `param` is the first invalid field."""
    code = CODES.get(problem.code, problem.code) or None
    param = next((error.field for error in problem.errors if error.field), None)
    return ErrorAnswer(error=ErrorOf(message=problem.detail or problem.title, type=_type_of(problem.status), param=param, code=code))


def headers_of(problem: Problem) -> dict[str, str]:
    """Headers of the answer, including `x-should-retry: false` for 409."""
    return {**(NO_RETRY if problem.status == 409 else {}), **problem.headers}


def _type_of(status: int) -> str:
    return TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def unsupported(param: str, reason: str) -> Problem:
    """Problem for a field, or a value of it, that is not supported."""
    return _wrong("unsupported_parameter", param, reason)


def missing(param: str, reason: str = "it is required") -> Problem:
    return _wrong("missing_required_parameter", param, reason)


def wrong_value(param: str, reason: str) -> Problem:
    return _wrong("invalid_value", param, reason)


def _wrong(code: str, param: str, reason: str) -> Problem:
    detail = f"{param}: {reason}" if param else reason
    return Problem(400, "Invalid request", detail, code, [FieldError(param, reason)])


def model_not_found(name: str, reason: str) -> Problem:
    """Problem for an unknown model, the same as for another tenant's model."""
    return Problem(404, "Not found", f"no model '{name}': {reason}", "model_not_found", [FieldError("model", reason)])


def failed_sampling(failure: Failure, reason: str, prompt: str) -> Problem:
    """Problem for failed sampling: a sampler reports it, or none answers. `prompt`: name of the request's field with the prompt."""
    status, code, headers = STATUSES[failure]
    named = _FIELD.match(reason) if failure == "invalid" else None
    param = prompt if failure == "context_length_exceeded" else named[1] if named else ""
    errors = [FieldError(param, reason)] if param else []
    return Problem(status, "Sampling failed", reason or f"sampling failed: {failure}", code, errors, headers)
