"""Accounts and keys of tenants: recorded by operators with `jobs.set-access.<tenant>`, and read by questions (`messages/verbs.py`).

Keys appear only as public keys. A job or an ask about `_all` concerns the operators' own keys, of the role admin. The audit log has the
actor, action and time of each effect; the scheduler writes a line together with its effect.
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
"""A user's NATS token, useless without its seed."""
Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]
MAX_KEYS = 1_000
"""Maximum keys of a tenant, revoked ones included, because its account's token, or one answer, contains all of them."""


class HttpPart(Value):
    """Data that a gateway needs in addition to the key's text; none of it is secret."""

    digest: Digest
    token: Token


class KeyNamed(Value):
    key: Key
    name: Name
    role: Role
    ends: Moment | None = None
    """Expiry; None: never."""


class NewKey(KeyNamed):
    http: HttpPart | None = None
    """Set for an HTTP key."""


class SetAccess(Message, kind="set-access.1"):
    """Record a tenant's account, suspension and keys, in this order; None leaves a value unchanged. Idempotent.

    For operators; the answer is the event `access`. NATS learns of it only when the account's token is pushed.
    """

    tenant: Name | None
    """None: the operators' keys."""
    request: str = Field(pattern=TASK_ID_PATTERN)
    """Id chosen by the sender, repeated in the answer."""
    account: Account | None = None
    """Its account; creates the tenant if it does not exist. Replacing an account revokes all keys, since the new one has not signed
    them."""
    suspended: bool | None = None
    add: NewKey | None = None
    beside: bool = False
    """Whether `add` has the name of a valid key, which it will replace; otherwise the name must be free."""
    revoke: list[Key] = Field(default=[], max_length=MAX_KEYS)


class AskAccess(Message, kind="ask-access.1"):
    cursor: Name | None = None
    """`cursor` of the previous page; None for the first page."""


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
    """None if it has no account, and therefore no keys."""
    suspended: bool
    keys: list[KeyRecord]
    """Keys by creation, revoked ones included."""
    deleted: bool = False
    """Whether its deletion was requested: its keys are refused, and its name is never reused."""
    max_connections: int
    """Maximum connections, for the token of its account; `max_message_bytes` likewise."""
    max_message_bytes: int


class AccessAnswer(Message, kind="access-answer.1"):
    tenants: list[TenantAccess]
    """Tenants by name; the first page starts with the operators."""
    cursor: str | None
    """Cursor for the next page; None on the last."""


class HttpKey(Message, kind="http-key.1"):
    """A valid HTTP key, in the bucket `http-keys` under its digest. A gateway that receives the key's text connects with this entry."""

    digest: Digest
    tenant: Name | None
    """None: an operators' key."""
    role: Role
    name: Name
    key: Key
    ends: Moment | None
    token: Token


Via = Literal["key", "short form", "ask", "scheduler"]
"""Origin of an action: a job whose subject names its key, a job whose subject names none, an ask, or the scheduler itself."""
Outcome = Literal["accepted", "rejected", "refused"]
"""`rejected`: an accepted submission whose environment failed its check."""
Reason = Literal["environment", "invalid", "key", "letter", "limit", "malformed", "package", "pool", "role", "start", "task", "tenant"]
"""Cause of a refusal: a part of the job, `limit` of a tenant, `invalid` for any other part, `malformed` if it could not be handled."""


class AskAudit(Message, kind="ask-audit.1"):
    since: Moment | None = None
    """Start, with its time zone; None: from the first row."""
    cursor: int = Field(default=0, ge=0, lt=2**63)
    """`cursor` of the previous page; 0 for the first page."""


class AuditLine(Value):
    """One action, or all refusals of one kind within an hour."""

    number: int
    at: Moment
    """For counted refusals: time of the first one."""
    tenant: str
    """`_all` for actions that concern all tenants; empty if the action named no existing tenant."""
    key: str | None
    """Public key of the sender; None if the action named none."""
    name: str | None
    """Name of that key; None for a key of the operator's folder, and for a deleted tenant's."""
    via: Via
    host: str
    """Address of the sender; empty if unknown: stored jobs do not carry it."""
    verb: str
    target: str
    """Task, `<task>.v<version>`, public key, or name of a tenant; empty for counted refusals."""
    outcome: Outcome
    reason: Reason | None
    """None for accepted actions."""
    count: int
    """Number of refusals of this tenant, key, verb and reason in this hour; 1 for accepted actions."""
    detail: dict[str, JsonValue]
    """Values set by an operator, or counts of deleted data."""


class AuditAnswer(Message, kind="audit-answer.1"):
    lines: list[AuditLine]
    """Lines by number."""
    cursor: int | None
    """Cursor for the next page; None on the last."""
