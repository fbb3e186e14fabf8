"""What a gateway's refusals, and failures on the way to it, are to the user: one line each."""

import json
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx2

from common.client_api.asking import UnknownHere
from common.client_api.errors import ClientError, NoAnswer, NotPermitted, TooManyJobs, WrongState

REPEATED = (408, 429, 502, 503, 504)
"""Statuses after which the same request may succeed."""
MAX_SHOWN = 300


class Lost(NoAnswer):
    """The connection failed: the request may have had its effect."""


class Busy(NoAnswer):
    """The gateway takes such a request later; `after_s`: seconds after which it says that it does."""

    def __init__(self, said: str, after_s: float) -> None:
        super().__init__(said)
        self.after_s = after_s


class Invalid(ClientError):
    """The gateway finds the request wrong; `reasons` begin with the field, where one is meant."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def no_gateway(shown: str, status: int | None = None) -> ClientError:
    said = "" if status is None else f" (status {status})"
    return ClientError(f"{shown} does not answer as a gateway does{said}; is it the address of one, of this version?")


def refusal(status: int, body: bytes, shown: str, *, has_key: bool, location: str = "") -> ClientError:
    """The error that an answer is. `shown`: the gateway's address."""
    detail, code, reasons = _read(body)
    if 300 <= status < 400:
        return ClientError(f"{shown} is answered from elsewhere: use {location.partition('/v1/')[0] or 'the address that it names'}")
    if status == 401 and code:
        wanted = "refuses this key; give a valid one" if has_key else "wants a key; give it"
        made = "; its operator makes one with `marlaas keys create TENANT NAME --http`"
        return NotPermitted(f"the gateway at {shown} {wanted} as MARLAAS_KEY, or key=… in Python{made}")
    match status:
        case _ if not code and status not in REPEATED:
            return no_gateway(shown, status)
        case 400 if reasons:
            return Invalid(reasons)
        case 403:
            return NotPermitted(f"the gateway at {shown} forbids this: {detail}")
        case 404:
            return UnknownHere(detail)
        case 409:
            return WrongState(detail)
        case 429:
            return TooManyJobs(detail or "too many requests; send this one again later")
        case _ if status in REPEATED:
            return NoAnswer(f"the gateway at {shown} has no answer: {detail or HTTPStatus(status).phrase.lower()}")
        case _:
            return ClientError(detail)


def failure(error: httpx2.TransportError, shown: str) -> ClientError:
    """The error that a failure of the connection is; `Lost` where another attempt may succeed."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message.rstrip(".") or "it is not valid"
            return ClientError(f"the certificate of {shown} is refused: {why}; name its authority's with --ca FILE (MARLAAS_NATS_CA)")
        if isinstance(cause, ssl.SSLError):
            reason = (cause.reason or str(cause)).lower().replace("_", " ")
            return ClientError(f"{shown} does not speak TLS as it should ({reason}); if it speaks none, its address is http://…")
    if isinstance(error, httpx2.RemoteProtocolError):
        return Lost(f"{shown} ends the connection without an answer; if it speaks TLS, its address is https://…")
    said = " ".join(str(error).split())[:MAX_SHOWN] or type(error).__name__
    return Lost(f"no gateway answers at {shown}: {said}")


def _read(body: bytes) -> tuple[str, str, list[str]]:
    """Detail, code and reasons of a problem, or of an error in OpenAI's shape; empty where the answer is neither."""
    try:
        found: Any = json.loads(body)
    except ValueError:
        return "", "", []
    if isinstance(found, dict) and isinstance(error := found.get("error"), dict):
        param = f"{error['param']}: " if error.get("param") else ""
        return f"{param}{error.get('message', '')}", str(error.get("code") or error.get("type") or "error"), []
    if not isinstance(found, dict) or "detail" not in found:
        return "", "", []
    reasons = [f"{one['field']}: {one['reason']}" if one["field"] else str(one["reason"]) for one in found.get("errors") or []]
    return str(found["detail"]), str(found.get("code", "")), reasons


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
