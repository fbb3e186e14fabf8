"""A transaction: a connection, and the outbox of messages that are written with it and published once it is committed."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from sqlalchemy import LargeBinary, Text, cast, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import refuse_oversize
from common.messages import Event, Message
from common.streams import KIND_HEADER
from scheduler_svc.store.queries.sql.parameters import Rows
from scheduler_svc.store.queries.sql.statement import Statement
from scheduler_svc.store.tables import events, outbox


@dataclass(frozen=True)
class OutboxMessage:
    """A message to write into the outbox."""

    subject: str
    message: Message
    message_id: str
    headers: dict[str, str] = field(default_factory=dict)
    as_json: bool = False
    """Key-value entries are JSON, so that any NATS client can read them."""


@dataclass(frozen=True)
class Outbox:
    """Messages and events of one transaction, in the order in which they are published."""

    messages: list[tuple[str, str, str, bytes]] = field(default_factory=list[tuple[str, str, str, bytes]])
    events: list[tuple[str, str, str, str]] = field(default_factory=list[tuple[str, str, str, str]])

    def post_encoded(self, subject: str, body: bytes, message_id: str, headers: dict[str, str]) -> None:
        """Raises: Reject when the message is too large for NATS; in the outbox it would block every message behind it."""
        refuse_oversize(subject, body, headers)
        self.messages.append((subject, message_id, json.dumps(headers), body))


@dataclass(frozen=True)
class Transaction:
    """What it posts is written by `write_outbox`, its last statement."""

    connection: AsyncConnection
    outbox: Outbox = field(default_factory=Outbox)

    def post(self, messages: Sequence[OutboxMessage]) -> None:
        """Publish the messages once the transaction is committed. Raises: Reject when one is too large for NATS."""
        for each in messages:
            body = each.message.model_dump_json().encode() if each.as_json else each.message.encode()
            self.outbox.post_encoded(each.subject, body, each.message_id, {KIND_HEADER: each.message.kind, **each.headers})

    def emit_event(self, tenant: str, task: str, event: str, data: dict[str, JsonValue] | None = None) -> None:
        """Record an event, and publish it once the transaction is committed."""
        values = {"tenant": tenant, "task": task, "event": event, "at_s": time.time(), "data": data or {}}
        self.post([OutboxMessage(streams.events(tenant, task), Event.model_validate(values), "")])
        self.outbox.events.append((tenant, task, event, json.dumps(values["data"])))

    async def write_outbox(self) -> None:
        """One statement, for all that was posted."""
        if self.outbox.events:
            rows = _message.of(self.outbox.messages) | _event.of(self.outbox.events)
            await _WRITE_WITH_EVENTS.run(self.connection, rows)
        elif self.outbox.messages:
            await _WRITE.run(self.connection, _message.of(self.outbox.messages))


_message = Rows("message", subject=Text, message_id=Text, headers=Text, body=LargeBinary)
_posted = select(_message.c.subject, _message.c.message_id, cast(_message.c.headers, JSONB), _message.c.body)
_event = Rows("event", tenant=Text, task=Text, event=Text, data=Text)
_emitted = select(_event.c.tenant, _event.c.task, _event.c.event, cast(_event.c.data, JSONB))
_recorded = insert(events).from_select(["tenant", "task", "event", "data"], _emitted).cte("recorded")
_write = insert(outbox).from_select(["subject", "message_id", "headers", "body"], _posted)
_WRITE, _WRITE_WITH_EVENTS = Statement(_write), Statement(_write.add_cte(_recorded))
