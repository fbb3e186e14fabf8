"""Errors with which NATS refuses a key, or an action that a key does not permit."""

import asyncio
import re
import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

from nats.errors import Error as NatsError

from common.access.credentials import Credentials

VIOLATION = re.compile(r'permissions violation for (?P<what>publish|subscription) to "(?P<subject>[^"]+)"', re.IGNORECASE)


def refused_key(where: str, key: Credentials | None, *, wants_key: bool) -> str:
    """Reason why the server at `where` refuses this key, or requires one. `wants_key`: whether the server uses keys."""
    if key is None and wants_key:
        return f"NATS at {where} requires a key; name its file with --creds, or in MARLAAS_NATS_CREDS"
    if key is None:
        return f"NATS at {where} refuses the credentials; correct MARLAAS_NATS_URL"
    if not wants_key:
        return f"NATS at {where} asks for a user and a password, not for a key; run it with keys (docs/tenancy.md)"
    if key.end_s is not None and key.end_s <= time.time():
        return f"{key} ended on {datetime.fromtimestamp(key.end_s, UTC):%Y-%m-%d %H:%M} UTC; ask for a new one"
    return (
        f"NATS at {where} refuses {key}: it was revoked, or its tenant is suspended or deleted, or it is of another deployment;"
        " ask for a new one"
    )


def violated(error: str) -> tuple[str, bool] | None:
    """The subject that NATS refused, and whether it was a publish; None for other errors."""
    found = VIOLATION.search(error)
    return (found["subject"], found["what"].lower() == "publish") if found else None


def refused_subject(subject: str, key: Credentials | None, *, published: bool) -> str:
    """Message saying what `key` does not permit, in the user's terms if the subject is a job's."""
    if key is None:
        return f"this connection may not use '{subject}'; its key, or its user, has no permission for it"
    family, verb, *rest = [*subject.split("."), ""]
    who = f"role {key.role}" if key.role else str(key)
    if family in ("jobs", "ask") and key.tenant is not None:
        if rest[0] not in (key.tenant, "*") and family == "jobs":
            return f"{key} may not act for tenant '{rest[0]}'"
        return f"{who} may not {verb if family == 'jobs' else rest[0]}; ask an owner of '{key.tenant}'"
    return f"{who} may not {'publish' if published else 'hear'} {subject}"


class Refused(NatsError):
    """NATS refuses a subject to this key; the text names it."""


class _Awaited:
    """Context of a block that a refusal cancels. Works as `asyncio.timeout` does, but takes a fifth of the time, because each published
    message uses one."""

    def __init__(self, refusals: "Refusals", subject: str) -> None:
        self.subject = subject
        self._refusals = refusals
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0
        """Number of cancellations of the task that other code had requested before the block."""
        self._refused: str | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task is not None else 0
        self._refusals.awaited_now.add(self)

    def end(self, refused: str) -> None:
        self._refused = refused
        if self._task is not None:
            self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._refusals.awaited_now.discard(self)
        if self._refused is not None and self._task is not None:
            alone = self._task.uncancel() <= self._cancellations
            if alone and kind is asyncio.CancelledError:
                raise Refused(self._refused) from None


class Refusals:
    """Ends blocks that wait for an answer after NATS has refused their subject. The server's error refers to no message, and no answer
    comes."""

    def __init__(self, key: Credentials | None) -> None:
        self._key = key
        self.awaited_now: set[_Awaited] = set()

    def awaited(self, subject: str) -> AbstractContextManager[None]:
        """Context of a block that publishes or subscribes to `subject`. Raises: Refused as soon as NATS refuses it; exceptions of the
        block."""
        return _Awaited(self, subject)

    def refuse(self, subject: str, *, published: bool) -> bool:
        """End the blocks that await `subject`; returns whether there was one. nats-py reports the subject in lower case."""
        found = [one for one in self.awaited_now if one.subject.lower() == subject.lower()]
        for one in found:
            self.awaited_now.discard(one)
            one.end(refused_subject(one.subject, self._key, published=published))
        return bool(found)
