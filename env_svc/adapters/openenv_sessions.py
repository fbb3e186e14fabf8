"""Sessions with an OpenEnv server, one WebSocket each: the door to aiohttp.

    → {"type": "reset", "data": {"seed": 7}}        ← {"type": "observation", "data": {"observation": {…}, "reward": 0.5, "done": false}}
    → {"type": "step", "data": {…the action…}}      ← the same, or {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": …}}
    → {"type": "close"}                             the server ends the session, then the connection

A server holds an episode in its connection. Between turns a session waits here under its history, for the next step with that
history. A waiting session may be closed at any time, because its episode can be replayed.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import JsonValue

from env_svc.contract import EnvironmentUnavailable

CONNECT_TIMEOUT_S = 20.0
CLOSE_TIMEOUT_S = 5.0
HEARTBEAT_S = 20.0
"""Seconds between pings, so that a vanished server is noticed before a call's timeout."""
MAX_MESSAGE_BYTES = 16 * 2**20


class RefusedAction(Exception):
    """The server refuses the action; its text says why. The session is unchanged."""


class SessionLost(EnvironmentUnavailable):
    """The connection, and the episode that the server held in it, are lost."""


@dataclass(frozen=True)
class Observation:
    """A server's answer to a reset or an action."""

    observation: dict[str, JsonValue]
    reward: float
    """Reward; 0 if the server gives none."""
    done: bool


class Session:
    """One connection. All methods raise SessionLost when it is lost, EnvironmentUnavailable when the server has no capacity."""

    def __init__(self, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._http = http
        self._socket = socket

    @classmethod
    async def connect(cls, url: str) -> "Session":
        http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await http.ws_connect(url, heartbeat=HEARTBEAT_S, max_msg_size=MAX_MESSAGE_BYTES)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await http.close()
            raise EnvironmentUnavailable(f"no OpenEnv server at {url}: {error or type(error).__name__}") from error
        except BaseException:
            await http.close()
            raise
        return cls(http, socket)

    async def reset(self, data: dict[str, JsonValue]) -> Observation:
        return await self._ask("reset", data)

    async def step(self, action: dict[str, JsonValue]) -> Observation:
        """The observation after an action. Raises: RefusedAction; RuntimeError if the environment on the server failed."""
        return await self._ask("step", action)

    async def close(self) -> None:
        """End the session; returns when the server has released its slot."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.send_json({"type": "close"})
                while not self._socket.closed:
                    await self._socket.receive()
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass  # the session has ended, or ends with the connection
        finally:
            await self._http.close()

    async def drop(self) -> None:
        """Close the connection immediately, without waiting for a server that may still compute."""
        await self._http.close()

    async def _ask(self, kind: str, data: dict[str, JsonValue]) -> Observation:
        try:
            await self._socket.send_json({"type": kind, "data": data})
            message = await self._socket.receive()
        except (aiohttp.ClientError, OSError) as error:
            raise SessionLost(f"the connection to the OpenEnv server is lost: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise SessionLost("the OpenEnv server ended the connection")
        return _observed(kind, message.data)


class Sessions:
    """Pool of at most `max_sessions` sessions with one server."""

    def __init__(self, url: str, max_sessions: int) -> None:
        self._url = url
        self._max_sessions = max_sessions
        self._places = asyncio.Semaphore(max_sessions)
        self._used = 0
        self._waiting: list[tuple[str, Session]] = []
        """(history, session), the oldest first."""

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None, None]:
        """Hold a slot for one active session; waiting sessions are evicted to make room."""
        async with self._places:
            yield

    def take(self, history: str) -> Session | None:
        """The waiting session with this history, if there is one."""
        for number, (there, session) in enumerate(self._waiting):
            if there == history:
                del self._waiting[number]
                self._used += 1
                return session
        return None

    async def fresh(self) -> Session:
        """A new session. The caller must hold a place."""
        self._used += 1
        try:
            while self._waiting and self._used + len(self._waiting) > self._max_sessions:
                await self._waiting.pop(0)[1].close()
            return await Session.connect(self._url)
        except BaseException:
            self._used -= 1
            raise

    def wait(self, history: str, session: Session) -> None:
        """Keep a session for the next step from `history`."""
        self._used -= 1
        self._waiting.append((history, session))

    @asynccontextmanager
    async def ending(self, session: Session, *, only_if_it_fails: bool = False) -> AsyncGenerator[None, None]:
        """End the session after the block, unless it waits by then. If the block fails, the session is dropped: its position is unknown.

        `only_if_it_fails`: keep the session if the block does not fail.
        """
        try:
            yield
        except BaseException:
            self._used -= 1
            await session.drop()
            raise
        if not only_if_it_fails and all(there is not session for _, there in self._waiting):
            await self.end(session)

    async def close(self) -> None:
        """End all waiting sessions."""
        while self._waiting:
            await self._waiting.pop()[1].close()

    async def end(self, session: Session) -> None:
        self._used -= 1
        await session.close()


def _observed(kind: str, text: str) -> Observation:
    try:
        answer: Any = json.loads(text)
        data = answer["data"]
        if answer["type"] == "error":
            _complain(kind, data)
        return Observation(dict(data["observation"]), float(data.get("reward") or 0.0), bool(data.get("done")))
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"the answer to {kind} is not from an OpenEnv server: {text[:200]}") from error


def _complain(kind: str, data: dict[str, Any]) -> None:
    """Raise the exception for a server's error. `Any`: as the server wrote it."""
    code, message = data.get("code"), str(data.get("message"))
    details = [f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg')}" for one in data.get("errors", ())]
    if code == "VALIDATION_ERROR" and kind == "step":
        raise RefusedAction("; ".join(details) or message)
    if code in ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"):
        raise EnvironmentUnavailable(f"the OpenEnv server opens no session: {message}")
    raise RuntimeError(f"the OpenEnv server failed at {kind} ({code}): {'; '.join([message, *details])}")
