"""Connection: requests to a gateway, repeated while nothing answers; refusals and failures on the way as errors of the client."""

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
"""Statuses after which the same request may succeed."""
MAX_SHOWN = 300
CONNECT_S = 5.0
ANSWER_S = 45.0
"""Maximum time for an answer, and between two parts of one: more than a gateway takes for a submission, and three comments of a stream."""
PAUSE = Backoff(first_s=0.1, max_s=2.0)
MAX_RETRY_AFTER_S = 60.0


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


Params = Sequence[tuple[str, str]]


class Connection:
    """Requests to one gateway, or to a balancer before several. `patience_s`: how long a request is repeated."""

    def __init__(self, url: str, http: httpx2.AsyncClient, *, has_key: bool, patience_s: float) -> None:
        self.shown = without_password(url).rstrip("/")
        self._http = http
        self._has_key = has_key
        self.patience_s = patience_s

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, key: str | None, tls: TlsFiles, patience_s: float) -> AsyncGenerator["Connection"]:
        """Nothing is sent yet. Raises: Fatal when a file of `tls` cannot be used."""
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
        """The answer, of a status below 300. The request may arrive more than once.

        `body`: sent as JSON. `answer_s`: maximum time for the answer. `patience_s`: in place of the connection's.
        Raises: ClientError when it is refused; NoAnswer.
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
        """Raises: ClientError for a failure that another attempt has too."""
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
        """An answer that is read as it comes, requested once. Raises: ClientError when it is refused, Busy where a later request may
        succeed; Lost, also while it is read."""
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
    """Seconds that the answer names; 0 where it names none."""
    said = response.headers.get("retry-after", "")
    return min(float(said), MAX_RETRY_AFTER_S) if said.isascii() and said.isdigit() else 0.0
