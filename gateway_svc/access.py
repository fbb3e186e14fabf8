"""Who sends a request: its key, and the key's own connection to NATS, so that NATS refuses what the key may not do."""

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
"""Interval at which connections are looked at that are idle, or whose key ends."""
NO_VALID_KEY = "no valid key"
"""What every caller is told whose key is not taken."""
log = structlog.get_logger()


class Unauthorized(MarlaasError):
    """No key, or none that is valid: the answer is the same for all of them."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    door: Door
    """What its key opens; NATS refuses what the key's role does not permit."""
    tenant: str | None
    """None for an admin, who acts for every tenant."""
    role: Role
    key: str
    """The key's public part; empty on a server without keys."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the key is revoked or has ended: streams end with it."""


class Access(Protocol):
    def entered(self, bearer: str | None) -> AbstractAsyncContextManager[Caller]:
        """The caller, for the time of one request. Raises: Unauthorized; Unavailable when NATS does not answer."""
        ...


class HttpKeys:
    """Latest known HTTP keys, by the digest of their text. While NATS is away they stay as they were."""

    def __init__(self, bus: Bus, *, clock: Callable[[], float] = time.time, reread_s: float = REREAD_S) -> None:
        """`clock`: Unix time."""
        self._clock = clock
        self._removed: Callable[[str], None] = lambda _: None
        self._followed = FollowedBucket(bus, HTTP_KEYS_BUCKET, HttpKey, self._note, reread_s=reread_s)

    def on_removal(self, call: Callable[[str], None]) -> None:
        """`call` gets the digest of each key that is revoked, or whose tenant is suspended or deleted."""
        self._removed = call

    def _note(self, digest: str, key: HttpKey | None) -> None:
        if key is None:
            self._removed(digest)

    def find(self, digest: str) -> HttpKey | None:
        """None for one that is unknown, revoked or ended. Raises: Unavailable when it may be known to NATS only, which is away."""
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
    """Of a server without keys: everybody acts for every tenant, by the gateway's own connection."""

    def __init__(self, bus: Bus, url: str) -> None:
        self._door = Door(bus, url)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:  # noqa: ARG002  a protocol's
        """A key that is given is ignored."""
        yield Caller(self._door, None, "admin", "")


@dataclass(frozen=True)
class Nats:
    """Where keys connect to, and how many of them."""

    url: str
    name: str
    """What the connections are called in NATS's own lists."""
    insecure: bool = False
    tls: TlsFiles = NO_FILES
    timings: Timings = DEFAULT
    connect_s: float = CONNECT_S
    """Time that a first request waits for NATS."""
    idle_s: float = IDLE_S
    """Time without a request after which a connection is closed."""
    most: int = MAX_CONNECTIONS


@dataclass(eq=False)
class _Connected:
    """The connection of one key."""

    key: HttpKey
    opening: asyncio.Task[Bus]
    used_s: float
    """When its last request ended, on the monotonic clock."""
    users: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        return self.users == 0 and self.opening.done()


class KeyAccess:
    """Of a server with keys. `run` must run beside it."""

    def __init__(self, keys: HttpKeys, nats: Nats) -> None:
        self._keys = keys
        self._nats = nats
        self._connected: dict[str, _Connected] = {}
        """By the digest of the key's text."""
        self._attending = TaskSet()
        keys.on_removal(self._end)

    @property
    def connections(self) -> int:
        return len(self._connected)

    @asynccontextmanager
    async def entered(self, bearer: str | None) -> AsyncGenerator[Caller]:
        """`bearer`: the key's text. Raises: Unauthorized; Unavailable when NATS does not answer, or too many keys are in use."""
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
        """Follow the keys, and close connections that are idle or whose key is over; until cancelled, which closes all."""
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
        """Raises: Unavailable when as many are in use as may."""
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
        """Close the connection once it is to be closed, or NATS has closed it for good, as it does with that of a revoked key."""
        try:
            bus = await asyncio.shield(found.opening)
        except Exception:  # the request tells it; the next one tries again
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
        """Close the connection of a key that is over, and tell the requests that use it."""
        if (found := self._connected.get(digest)) is not None:
            found.ended.set()
            self._close(digest)

    def _close(self, digest: str) -> None:
        self._connected.pop(digest).closing.set()

    def _remove(self, digest: str, found: _Connected) -> None:
        """Another connection of the key may be there already."""
        if self._connected.get(digest) is found:
            del self._connected[digest]
