"""Accounts and keys of tenants: what operators record by `jobs.set-access.<tenant>`, and what is asked for (`messages/verbs.py`).

Public keys only. A job or an ask about `_all` is about the operators' own keys, of the role admin. The audit says who has done what, and
when: it is written by the scheduler with each effect.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue, PlainSerializer

from common.formats.wrong_values import described
from common.messages.artifacts import SHA256_PATTERN
from common.messages.base import Message, Value
from common.spec import TASK_ID_PATTERN, Name

Role = Literal["owner", "member", "reader", "admin"]
Account = Annotated[str, Field(pattern=described(r"^A[A-Z2-7]{55}$", "the public key of an account, A…"))]
Key = Annotated[str, Field(pattern=described(r"^U[A-Z2-7]{55}$", "the public key of a user, U…"))]
Digest = Annotated[str, Field(pattern=SHA256_PATTERN)]
"""SHA-256 of an HTTP key's text."""
Token = Annotated[str, Field(pattern=described(r"^[\w-]+\.[\w-]+\.[\w-]+$", "a signed token of NATS"), max_length=12_000)]
"""A user's token of NATS, of use only to the holder of its seed."""
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]
MAX_KEYS = 1_000
"""Maximum keys of a tenant, revoked ones included: all are in its account's token, or in one answer."""


class HttpPart(Value):
    """What a gateway needs beside the key's text; nothing of it is secret."""

    digest: Digest
    token: Token


class KeyNamed(Value):
    key: Key
    name: Name
    role: Role
    ends: Moment | None = None
    """None: it has no end."""


class NewKey(KeyNamed):
    http: HttpPart | None = None
    """Of an HTTP key."""


class SetAccess(Message, kind="set-access.1"):
    """Record a tenant's account, suspension and keys, in this order; None leaves a value as it is. Harmless when repeated.

    For operators; the answer is the event `access`. NATS knows nothing of it before the account's token is pushed.
    """

    tenant: Name | None
    """None: the operators' keys."""
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id made by the sender, repeated in the answer."""
    account: Account | None = None
    """Its account; makes the tenant unless there is one. Another account than before revokes all its keys, which it has not signed."""
    suspended: bool | None = None
    add: NewKey | None = None
    beside: bool = False
    """Whether `add` has the name of a key that is valid, which it will replace; otherwise the name must be free."""
    revoke: list[Key] = Field(default=[], max_length=MAX_KEYS)


class AskAccess(Message, kind="ask-access.1"):
    cursor: Name | None = None
    """`cursor` of the page before; None for the first."""


class KeyRecord(KeyNamed):
    created: Moment
    is_http: bool = False
    revoked: Moment | None = None
    last_used: Moment | None = None
    """When its last job was handled, to the minute; asks and events do not count."""


class TenantAccess(Value):
    tenant: str | None
    """None: the operators' keys."""
    account: str | None
    """None where it has none: it has no keys."""
    suspended: bool
    keys: list[KeyRecord]
    """By creation, revoked ones included."""
    deleted: bool = False
    """Whether its deletion was requested; its keys are refused, and its name is not used again."""
    max_connections: int
    """For the token of its account, as the next."""
    max_message_bytes: int


class AccessAnswer(Message, kind="access-answer.1"):
    tenants: list[TenantAccess]
    """By name; the operators' first, on the first page of all."""
    cursor: str | None
    """For the next page; None on the last."""


class HttpKey(Message, kind="http-key.1"):
    """An HTTP key that is valid, in the bucket `http-keys` under its digest. A gateway that is given the key's text connects with it."""

    digest: Digest
    tenant: Name | None
    """None: an operators' key."""
    role: Role
    name: Name
    key: Key
    ends: Moment | None
    token: Token


Via = Literal["key", "short form", "ask", "scheduler"]
"""Way of an action: a job whose subject names its key, a job whose subject names none, an ask, or the scheduler by itself."""
Outcome = Literal["accepted", "rejected", "refused"]
"""`rejected`: a submission that was accepted, by the check of its environment."""
Reason = Literal["environment", "invalid", "key", "letter", "limit", "malformed", "package", "pool", "role", "start", "task", "tenant"]
"""What was wrong: a part of the job, `limit` of a tenant, `invalid` for any other part, `malformed` where it could not be handled."""


class AskAudit(Message, kind="ask-audit.1"):
    since: Moment | None = None
    """With its time zone; None: from the first row."""
    cursor: int = Field(default=0, ge=0, lt=2**63)
    """`cursor` of the page before; 0 for the first."""


class AuditLine(Value):
    """One action, or all refusals of one kind in an hour."""

    number: int
    at: Moment
    """Of counted refusals: the first one's."""
    tenant: str
    """`_all` for what concerns all tenants; empty where the action named no tenant that there is."""
    key: str | None
    """Public key of the sender; None where it named none."""
    name: str | None
    """Name of that key; None for a key of the operator's folder, and for one of a deleted tenant."""
    via: Via
    host: str
    """Address of the sender; empty where it is not known: stored jobs do not carry it."""
    verb: str
    target: str
    """Task, `<task>.v<version>`, public key, or name of a tenant; empty for counted refusals."""
    outcome: Outcome
    reason: Reason | None
    """None for what was accepted."""
    count: int
    """Refusals of this tenant, key, verb and reason in this hour; 1 for what was accepted."""
    detail: dict[str, JsonValue]
    """Values that an operator has set, or counts of what was deleted."""


class AuditAnswer(Message, kind="audit-answer.1"):
    lines: list[AuditLine]
    """By number."""
    cursor: int | None
    """For the next page; None on the last."""
