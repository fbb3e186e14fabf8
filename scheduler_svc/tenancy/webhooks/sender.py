"""Sends waiting messages to webhooks, until they are delivered or given up.

Rows of PostgreSQL are the queue: a replica leases a webhook for a minute, sends the message that is due, and records the outcome. If a
replica dies meanwhile, the message may have been sent; another replica resends it with the same id.

Requests go to the address that was checked after resolving the name, so DNS rebinding has no effect. Only the status line of a response
is read, never its headers (such as a redirection's target) or body.
"""

import asyncio
import ipaddress
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from urllib.parse import SplitResult

import structlog

from common.errors import Reject, Retry
from common.resilience.backoff import jittered
from common.resilience.event_loop import TaskSet
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.database import Database
from scheduler_svc.base.metrics import WEBHOOKS
from scheduler_svc.base.webhook_deliveries import Due
from scheduler_svc.tenancy.webhooks.addresses import PORTS, Policy, literal_of, parse_url
from scheduler_svc.tenancy.webhooks.signing import Sealed, signature_headers, unseal

log = structlog.get_logger()


# ---------------------------------------------------------------------------------------------------------- one request


TIMEOUT_S = 10.0
"""Maximum seconds of an attempt, including name resolution."""
MAX_LINE_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})(?: [^\r\n]*)?\r?\n")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Failed(Exception):
    """The attempt got no response; the text says why, without any data from the receiver."""


async def resolved(host: str, port: int) -> list[str]:
    """Addresses of a name by the system's resolver. Raises: OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=1)  # SOCK_STREAM
    return [str(address[4][0]) for address in found]


@cache
def _system_tls() -> ssl.SSLContext:
    """TLS context of the system's certificates, which take some 20 ms to load."""
    return ssl.create_default_context()


class Post:
    """HTTP client for webhooks. `tls`: overrides the system's certificates; `resolve`: overrides its resolver."""

    def __init__(self, policy: Policy, *, timeout_s: float = TIMEOUT_S, tls: ssl.SSLContext | None = None, resolve: Resolve = resolved):
        self._policy = policy
        self._timeout_s = timeout_s
        self._tls = tls or _system_tls()
        self._resolve = resolve

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Post `body`; returns the HTTP status. Raises: Failed."""
        try:
            parts = parse_url(url, self._policy)
            async with asyncio.timeout(self._timeout_s):
                return await self._send(parts, headers, body)
        except Reject as error:
            raise Failed(str(error)) from None
        except TimeoutError:
            raise Failed(f"no answer within {self._timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise Failed(f"TLS: {error.reason or 'it failed'}"[:200]) from None
        except (OSError, UnicodeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            raise Failed("the host does not answer, or not by HTTP") from None

    async def _send(self, parts: SplitResult, headers: Mapping[str, str], body: bytes) -> int:
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        address = await self._address(host, port)
        context = self._tls if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=host if context else None, limit=MAX_LINE_BYTES
        )
        try:
            writer.write(_head(parts, headers, len(body)) + body)
            await writer.drain()
            return await _status(reader)
        finally:
            writer.transport.abort()  # waits neither for the rest of a response nor for TLS's close
            with suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def _address(self, host: str, port: int) -> str:
        """Permitted address of the host. Raises: Failed if any of its addresses is not permitted, so that names cannot be used to probe
        addresses."""
        literal = literal_of(host)
        found = [str(literal)] if literal is not None else await self._resolve(host, port)
        for each in found:
            if not self._policy.permits(ipaddress.ip_address(each.partition("%")[0])):
                raise Failed("the host has no public address")
        if not found:
            raise Failed("the host has no address")
        return found[0]


def _head(parts: SplitResult, headers: Mapping[str, str], size: int) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = {
        "Host": parts.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(size),
        "User-Agent": "marlaas-webhook/1",
        "Connection": "close",
        **headers,
    }
    return "\r\n".join([f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in lines.items()), "", ""]).encode("ascii")


async def _status(reader: asyncio.StreamReader) -> int:
    """Status of an HTTP response. Raises: Failed; LimitOverrunError; IncompleteReadError."""
    found = _STATUS.fullmatch(await reader.readuntil(b"\n"))
    if found is None:
        raise Failed("the host does not answer by HTTP")
    return int(found[1])


# --------------------------------------------------------------------------------------------------------------- sender


PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 7200.0, 21_600.0, 43_200.0, 86_400.0)
"""Seconds of pause after each failed attempt; the message is given up after the attempt that follows the last pause, about two days."""
MAX_CONCURRENT = 32
"""Maximum messages that a replica sends concurrently, each to a different webhook."""
LOOK_EVERY_S = 1.0
GONE = 410
"""Status of a receiver that wants no further messages: the message is given up immediately."""


class WebhookSender:
    """Loop that sends due messages; every replica may run one."""

    def __init__(
        self,
        database: Database,
        post: Post,
        sealing_key: bytes,
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        look_every_s: float = LOOK_EVERY_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._post = post
        self._sealing_key = sealing_key
        self._pauses_s = pauses_s
        self._look_every_s = look_every_s
        self._now_s = now_s
        self._sending = TaskSet()

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as runners:
            while True:
                due = await self._take()
                for each in due:
                    self._sending.hold(runners.create_task(self._send_quietly(each)))
                if self._sending and len(due) > 0:
                    await asyncio.wait(self._sending, timeout=self._look_every_s, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(self._look_every_s)

    async def _take(self) -> list[Due]:
        most = MAX_CONCURRENT - len(self._sending)
        if most <= 0:
            return []
        try:
            async with self._database.statements() as connection:
                return await webhooks.take(connection, most=most)
        except Retry as error:
            log.warning("webhooks_postponed", reason=str(error))
            return []

    async def _send_quietly(self, due: Due) -> None:
        try:
            await self.send(due)
        except Retry as error:  # whether sent or not, it is resent with the same id
            log.warning("webhook_not_recorded", message=due.message, reason=str(error))
        except Exception:  # one bad row must not stop the others
            log.exception("webhook_not_sent", message=due.message)

    async def send(self, due: Due) -> None:
        """Attempt one delivery and record the outcome. Raises: Retry if PostgreSQL is unavailable."""
        status, reason = await self._attempt(due)
        is_last = status == GONE or due.attempts >= len(self._pauses_s)
        state = "delivered" if not reason else "given_up" if is_last else "waiting"
        pause_s = jittered(self._pauses_s[due.attempts]) if state == "waiting" else 0.0
        async with self._database.transaction() as tx:
            await webhooks.record(tx.connection, due, status, reason, state=state, pause_s=pause_s)
        WEBHOOKS.labels("failed" if state == "waiting" else state).inc()
        log.info("webhook_sent", tenant=due.tenant, message=due.message, state=state, status=status, attempt=due.attempts + 1)

    async def _attempt(self, due: Due) -> tuple[int | None, str]:
        """HTTP status, and why the attempt failed; the reason is empty if it succeeded."""
        body = due.body.encode()
        try:
            key = unseal(self._sealing_key, (due.tenant, due.webhook), due.sealed)
            status = await self._post.send(due.url, signature_headers(key, due.message, self._now_s(), body), body)
        except Sealed:
            return None, "the secret was sealed by another key of the deployment; set the webhook with a new secret"
        except Failed as error:
            return None, str(error)
        if 200 <= status < 300:
            return status, ""
        return status, "redirections are not followed" if 300 <= status < 400 else f"the receiver answers {status}"
