"""Connection: requests to a gateway, retried while no gateway answers; refusals and transport failures as errors of the client."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httpx2

from common.bus import TlsFiles
from common.bus.transport.address import without_password
from common.client_api.asking import UnknownHere
from common.client_api.errors import ClientError, NoAnswer, NotPermitted, TooManyJobs, WrongState
from common.resilience.backoff import Backoff

REPEATED = (408, 429, 502, 503, 504)
"""Statuses after which the same request may succeed later."""
MAX_SHOWN = 300
CONNECT_S = 5.0
ANSWER_S = 45.0
"""Maximum seconds until an answer begins, and between two of its parts. A gateway takes less for a submission, and sends three comments of
a stream in this time."""
PAUSE = Backoff(first_s=0.1, max_s=2.0)
MAX_RETRY_AFTER_S = 60.0


class Lost(NoAnswer):
    """The connection failed: the request may have taken effect."""


class Busy(NoAnswer):
    """The gateway is busy (429 or 503): retry after `after_s` seconds."""

    def __init__(self, said: str, after_s: float) -> None:
        super().__init__(said)
        self.after_s = after_s


class Invalid(ClientError):
    """The gateway finds the request invalid; each of `reasons` starts with the field, if it concerns one."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def no_gateway(shown: str, status: int | None = None) -> ClientError:
    said = "" if status is None else f" (status {status})"
    return ClientError(f"{shown} does not answer as a gateway does{said}; is it the address of one, of this version?")


def refusal(status: int, body: bytes, shown: str, *, has_key: bool, location: str = "") -> ClientError:
    """Error for a response that is not a success. `shown`: the gateway's address."""
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
    """Error for a failed connection; `Lost` if a retry may succeed."""
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
    """Detail, code and reasons of a problem, or of an error in OpenAI's format; empty if the response is neither."""
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


Params = Sequence[tuple[str, str]]


class Connection:
    """Requests to one gateway, or to a load balancer. `patience_s`: seconds for which a request is retried."""

    def __init__(self, url: str, http: httpx2.AsyncClient, *, has_key: bool, patience_s: float) -> None:
        self.shown = without_password(url).rstrip("/")
        self._http = http
        self._has_key = has_key
        self.patience_s = patience_s

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, key: str | None, tls: TlsFiles, patience_s: float) -> AsyncGenerator["Connection"]:
        """Set up a connection; nothing is sent yet. Raises: Fatal if a file of `tls` cannot be used."""
        headers = {"Accept-Encoding": "identity", "User-Agent": "marlaas"} | ({"Authorization": f"Bearer {key}"} if key else {})
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S)
        verify = tls.context() if tls.are_given else True
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout, verify=verify) as http:
            yield cls(url, http, has_key=key is not None, patience_s=patience_s)

    async def request(
        self,
        method: str,
        path: str,
        params: Params = (),
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
        patience_s: float | None = None,
    ) -> httpx2.Response:
        """Send a request; returns its response with a status below 300. The request may arrive more than once.

        `body`: sent as JSON. `answer_s`: maximum seconds for the answer. `patience_s`: overrides the connection's.
        Raises: ClientError if it is refused; NoAnswer.
        """
        patience_s = self.patience_s if patience_s is None else patience_s
        began, attempt = time.monotonic(), 0
        while True:
            found = await self._attempt(method, path, params, body, dict(headers or {}), answer_s)
            if isinstance(found, httpx2.Response) and found.is_success:
                return found
            error, after_s = (found, 0.0) if isinstance(found, Lost) else (self._refusal(found), _retry_after(found))
            attempt += 1
            pause_s = max(PAUSE.pause_s(attempt), after_s)
            may_repeat = isinstance(found, Lost) or found.status_code in REPEATED
            if not may_repeat or time.monotonic() - began + pause_s > patience_s:
                raise error
            await asyncio.sleep(pause_s)

    async def _attempt(
        self, method: str, path: str, params: Params, body: Any, headers: dict[str, str], answer_s: float
    ) -> httpx2.Response | Lost:
        """One attempt; `Lost` if the connection failed. Raises: ClientError for a failure that a retry would repeat."""
        timeout = httpx2.Timeout(answer_s, connect=CONNECT_S)
        try:
            sent = httpx2.QueryParams(list(params))
            return await self._http.request(method, path, params=sent, timeout=timeout, json=body, headers=headers)
        except httpx2.TransportError as error:
            failed = failure(error, self.shown)
        except httpx2.HTTPError as error:  # an answer that cannot be decoded
            raise ClientError(f"{self.shown} does not answer as a gateway does: {error}") from None
        if isinstance(failed, Lost):
            return failed
        raise failed

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, params: Params = (), *, headers: Mapping[str, str] | None = None, body: Any = None
    ) -> AsyncGenerator[httpx2.Response]:
        """A streamed response, requested once. Raises: ClientError if it is refused; Busy if a later request may succeed; Lost, also while
        the response is read.
        """
        sent = httpx2.QueryParams(list(params))
        try:
            async with self._http.stream(method, path, params=sent, headers=headers, json=body) as response:
                if not response.is_success:
                    await response.aread()
                    refused, after_s = self._refusal(response), _retry_after(response)
                    raise Busy(str(refused), after_s) if response.status_code == 503 and after_s else refused
                yield response
        except httpx2.TransportError as error:
            raise failure(error, self.shown) from None

    def _refusal(self, response: httpx2.Response) -> ClientError:
        location = response.headers.get("location", "")
        return refusal(response.status_code, response.content, self.shown, has_key=self._has_key, location=location)


def _retry_after(response: httpx2.Response) -> float:
    """Seconds in the header Retry-After; 0 without it."""
    said = response.headers.get("retry-after", "")
    return min(float(said), MAX_RETRY_AFTER_S) if said.isascii() and said.isdigit() else 0.0
