"""The audit: who has done what, and when. Written by the scheduler with each effect, and asked for (`messages/verbs.py`)."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, JsonValue, PlainSerializer

from common.messages.base import Message, Value

Moment = Annotated[AwareDatetime, PlainSerializer(datetime.isoformat, return_type=str)]
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
