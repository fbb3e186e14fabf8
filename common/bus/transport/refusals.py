"""What a connection is told when NATS refuses a key, or something that a key may not do."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from nats.errors import Error as NatsError

from common.access.credentials import Credentials

VIOLATION = re.compile(r'permissions violation for (?P<what>publish|subscription) to "(?P<subject>[^"]+)"', re.IGNORECASE)


def refused_key(where: str, key: Credentials | None, *, wants_key: bool) -> str:
    """Why the server at `where` takes neither this key nor its absence. `wants_key`: whether it asks for keys at all."""
    if key is None and wants_key:
        return f"NATS at {where} takes nobody without a key; name its file with --creds, or in MARLAAS_NATS_CREDS"
    if key is None:
        return f"NATS at {where} refuses the credentials; correct MARLAAS_NATS_URL"
    if not wants_key:
        return f"NATS at {where} asks for a user and a password, not for a key; give nats://user:password@host:4222, or run it with keys"
    if key.end_s is not None and key.end_s <= time.time():
        return f"{key} ended on {datetime.fromtimestamp(key.end_s, UTC):%Y-%m-%d %H:%M} UTC; ask for a new one"
    return (
        f"NATS at {where} refuses {key}: it was revoked, or its tenant is suspended or deleted, or it is of another deployment;"
        " ask for a new one"
    )


def violated(error: str) -> tuple[str, bool] | None:
    """The subject that NATS refused, and whether it was published; None for another error."""
    found = VIOLATION.search(error)
    return (found["subject"], found["what"].lower() == "publish") if found else None


def refused_subject(subject: str, key: Credentials | None, *, published: bool) -> str:
    """What `key` may not do, in words of the user where the subject is a job's."""
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
    """NATS refuses to take a subject from this key; the text says which."""


@dataclass
class _Awaited:
    ending: asyncio.Timeout
    published: bool = True
    """Whether NATS refused to publish; else it refused to subscribe."""


class Refusals:
    """Ends what waits for an answer to a subject that NATS refuses: the server's error names no message, and no answer comes."""

    def __init__(self, key: Credentials | None) -> None:
        self._key = key
        self._awaited: dict[str, list[_Awaited]] = {}
        """By subject in small letters, as nats-py gives errors."""

    @asynccontextmanager
    async def awaited(self, subject: str) -> AsyncGenerator[None]:
        """Of a block that publishes or subscribes to `subject`. Raises: Refused as soon as NATS refuses it; what the block raises."""
        awaiting = self._awaited.setdefault(subject.lower(), [])
        this = _Awaited(asyncio.timeout(None))
        try:
            async with this.ending:
                awaiting.append(this)
                yield
        except TimeoutError:
            if this.ending.expired():
                raise Refused(refused_subject(subject, self._key, published=this.published)) from None
            raise
        finally:
            if this in awaiting:
                awaiting.remove(this)
            if not awaiting and self._awaited.get(subject.lower()) is awaiting:
                del self._awaited[subject.lower()]

    def refuse(self, subject: str, *, published: bool) -> bool:
        """Whether a block awaited it."""
        found = self._awaited.pop(subject.lower(), [])
        for each in found:
            each.published = published
            each.ending.reschedule(0)
        return bool(found)
