"""Authenticates requests. Each key gets its own NATS connection, so that NATS refuses what the key may not do."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from common.access.credentials import credentials_of
from common.access.keys import Seed, digest_of, seed_of
from common.bus import NO_FILES, REREAD_S, Bus, FollowedBucket, TlsFiles
from common.bus.transport.timings import DEFAULT, Timings
from common.client_api.asking import Door
from common.errors import Fatal, KeyRefused, MarlaasError, Unavailable
from common.messages import HttpKey
from common.messages.tenancy.access import Role
from common.resilience.event_loop import TaskSet
from common.streams import HTTP_KEYS_BUCKET

IDLE_S = 300.0
MAX_CONNECTIONS = 1_000
CONNECT_S = 5.0
SWEEP_S = 0.25
"""Seconds between checks for idle connections and ended keys."""
NO_VALID_KEY = "no valid key"
"""Answer to every invalid key, whatever is wrong with it."""
log = structlog.get_logger()


class Unauthorized(MarlaasError):
    """The key is missing or invalid; the answer is the same in all cases."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    door: Door
    """The key's access to the scheduler; NATS refuses what the key's role does not permit."""
    tenant: str | None
    """The key's tenant; None for an admin, who acts for every tenant."""
    role: Role
    key: str
    """Public part of the key; empty on a server without keys."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the key expires or is revoked; its streams then end."""


class Access(Protocol):
    def entered(self, bearer: str | None) -> AbstractAsyncContextManager[Caller]:
        """Context manager that yields the caller for one request. Raises: Unauthorized; Unavailable if NATS does not answer."""
        ...


class HttpKeys:
    """Known HTTP keys, by digest of their text. While NATS is unavailable, the last known keys still apply."""

    def __init__(self, bus: Bus, *, clock: Callable[[], float] = time.time, reread_s: float = REREAD_S) -> None:
        """`clock`: returns Unix time. `reread_s`: seconds between reads of the whole bucket."""
        self._clock = clock
        self._removed: Callable[[str], None] = lambda _: None
        self._followed = FollowedBucket(bus, HTTP_KEYS_BUCKET, HttpKey, self._note, reread_s=reread_s)

    def on_removal(self, call: Callable[[str], None]) -> None:
        """Register `call`, which gets the digest of each key that is revoked, or whose tenant is suspended or deleted."""
        self._removed = call

    def _note(self, digest: str, key: HttpKey | None) -> None:
        if key is None:
            self._removed(digest)

    def find(self, digest: str) -> HttpKey | None:
        """Look up a key; None if it is unknown, revoked or expired. Raises: Unavailable if it is unknown and NATS is unavailable."""
        found = self._followed.known.get(digest)
        if found is None and not self._followed.is_current:
            raise Unavailable("NATS does not answer, which has the keys")
        return None if found is None or self.has_ended(found) else found

    def has_ended(self, key: HttpKey) -> bool:
        return key.ends is not None and key.ends.timestamp() <= self._clock()

    async def follow(self) -> None:
        """Follow the bucket until cancelled."""
        await self._followed.follow()


class OpenAccess:
    """Access to a server without keys: every caller acts for every tenant, through the gateway's own connection."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._door = Door(bus, url)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:  # noqa: ARG002  a protocol's
        """Yield an admin; a given key is ignored."""
        yield Caller(self._door, None, "admin", "")


@dataclass(frozen=True)
class Nats:
    """How keys connect to NATS, and limits of these connections."""

    url: str
    name: str
    """Name of the connections in NATS's own lists."""
    insecure: bool = False
    tls: TlsFiles = NO_FILES
    timings: Timings = DEFAULT
    connect_s: float = CONNECT_S
    """Maximum seconds that a key's first request waits for NATS."""
    idle_s: float = IDLE_S
    """Seconds without a request after which a connection is closed."""
    most: int = MAX_CONNECTIONS


@dataclass(eq=False)
class _Connected:
    """The NATS connection of one key."""

    key: HttpKey
    opening: asyncio.Task[Bus]
    used_s: float
    """Monotonic time at which the key's last request ended."""
    users: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and self.opening.done()


class KeyAccess:
    """Access to a server with keys. `run` must be running."""

    def __init__(self, keys: HttpKeys, nats: Nats) -> None:
        self._keys = keys
        self._nats = nats
        self._connected: dict[str, _Connected] = {}
        """Connections by digest of the key's text."""
        self._attending = TaskSet()
        keys.on_removal(self._end)

    @property
    def connections(self) -> int:
        return len(self._connected)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        """Yield the caller. `bearer`: text of the key. Raises: Unauthorized; Unavailable without NATS, or if too many keys are in use."""
        seed = seed_of(bearer) if bearer is not None else None
        if bearer is None or seed is None:
            raise Unauthorized(NO_VALID_KEY)
        key = self._keys.find(digest_of(bearer))
        if key is None:
            raise Unauthorized(NO_VALID_KEY)
        found = self._connected.get(key.digest) or self._add(key, seed)
        found.users += 1
        try:
            bus = await asyncio.shield(found.opening)
            if found.ended.is_set():
                raise Unauthorized(NO_VALID_KEY)
            yield Caller(Door(bus, self._nats.url, key.tenant), key.tenant, key.role, key.key, found.ended)
        finally:
            found.users -= 1
            found.used_s = time.monotonic()

    async def run(self) -> None:
        """Follow the keys and close connections that are idle or whose key ended, until cancelled; then close all."""
        try:
            async with asyncio.TaskGroup() as runners:
                runners.create_task(self._keys.follow())
                runners.create_task(self._sweep())
        finally:
            for digest in list(self._connected):
                self._end(digest)
            await asyncio.gather(*self._attending, return_exceptions=True)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            before = time.monotonic() - self._nats.idle_s
            for digest, found in list(self._connected.items()):
                if self._keys.has_ended(found.key):
                    self._end(digest)
                elif found.is_idle and found.used_s < before:
                    self._close(digest)

    def _add(self, key: HttpKey, seed: Seed) -> _Connected:
        """Add a connection for `key`. Raises: Unavailable if the maximum number of connections is in use."""
        if len(self._connected) >= self._nats.most:
            idle = [(found.used_s, digest) for digest, found in self._connected.items() if found.is_idle]
            if not idle:
                raise Unavailable("as many keys are in use here as may; try again later")
            self._close(min(idle)[1])
        found = _Connected(key, asyncio.create_task(self._open(key, seed)), time.monotonic())
        self._connected[key.digest] = found
        self._attending.start(self._attend(key.digest, found))
        return found

    async def _open(self, key: HttpKey, seed: Seed) -> Bus:
        nats = self._nats
        try:
            held = credentials_of(key.token, seed)
            async with asyncio.timeout(nats.connect_s):
                return await Bus.connect(nats.url, nats.name, creds=held, insecure=nats.insecure, tls=nats.tls, timings=nats.timings)
        except TimeoutError:
            raise Unavailable("NATS does not answer") from None
        except (KeyRefused, ValueError) as error:
            log.info("http_key_refused", key=key.key, tenant=key.tenant, reason=str(error))
            raise Unauthorized(NO_VALID_KEY) from None
        except Fatal as error:
            log.error("http_key_not_connected", reason=str(error))
            raise Unavailable("NATS cannot be used") from None

    async def _attend(self, digest: str, found: _Connected) -> None:
        """Close the connection when requested, or after NATS closed it permanently, as NATS does when a key is revoked."""
        try:
            bus = await asyncio.shield(found.opening)
        except Exception:  # the request reports the error; the next request reconnects
            self._remove(digest, found)
            return
        waiting: list[asyncio.Task[object]] = [asyncio.create_task(bus.wait_fatal()), asyncio.create_task(found.closing.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not found.closing.is_set():
            found.ended.set()
            self._remove(digest, found)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await bus.close()

    def _end(self, digest: str) -> None:
        """Close the connection of an ended key, and end the requests that use it."""
        if (found := self._connected.get(digest)) is not None:
            found.ended.set()
            self._close(digest)

    def _close(self, digest: str) -> None:
        self._connected.pop(digest).closing.set()

    def _remove(self, digest: str, found: _Connected) -> None:
        """Remove this connection, unless another one has replaced it."""
        if self._connected.get(digest) is found:
            del self._connected[digest]
