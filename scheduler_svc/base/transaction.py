"""A transaction: a connection, and the outbox of messages that are written with it and published after its commit."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from sqlalchemy import BigInteger, LargeBinary, Text, cast, select
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from common import streams
from common.bus import refuse_oversize
from common.messages import Event, Message
from common.streams import KIND_HEADER
from scheduler_svc.base import audit
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.sql import Rows, Statement
from scheduler_svc.base.tables import event_numbers, events, outbox


@dataclass(frozen=True)
class OutboxMessage:
    """A message to write into the outbox."""

    subject: str
    message: Message
    message_id: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outbox:
    """Messages and events of one transaction, in publishing order."""

    messages: list[tuple[str, str, str, bytes]] = field(default_factory=list[tuple[str, str, str, bytes]])
    events: list[tuple[int, Event]] = field(default_factory=list[tuple[int, Event]])
    """Events, each with the index of its message in `messages`; the message's body is written once the event has its number."""

    def post_encoded(self, subject: str, body: bytes, message_id: str, headers: dict[str, str]) -> None:
        """Add an encoded message. Raises: Reject if it is too large for NATS; in the outbox it would block every message behind it."""
        refuse_oversize(subject, body, headers)
        self.messages.append((subject, message_id, json.dumps(headers), body))


@dataclass(frozen=True)
class Transaction:
    """A connection with its outbox and audit entries, which `write_outbox` writes last."""

    connection: AsyncConnection
    outbox: Outbox = field(default_factory=Outbox)
    audited: list[audit.Accepted | audit.Refused] = field(default_factory=list[audit.Accepted | audit.Refused])

    def post(self, messages: Sequence[OutboxMessage]) -> None:
        """Publish the messages once the transaction is committed. Raises: Reject if one is too large for NATS."""
        for each in messages:
            headers = {KIND_HEADER: each.message.kind, **each.headers}
            self.outbox.post_encoded(each.subject, each.message.encode(), each.message_id, headers)

    def post_value(self, bucket: str, key: str, value: Message) -> None:
        """Set an entry of a bucket once the transaction is committed; as JSON, readable by any NATS client. Raises: as `post`."""
        body = value.model_dump_json().encode()
        self.outbox.post_encoded(streams.value_subject(bucket, key), body, "", {KIND_HEADER: value.kind})

    def post_deletion(self, bucket: str, key: str) -> None:
        """Delete an entry of a bucket once the transaction is committed."""
        self.outbox.post_encoded(streams.value_subject(bucket, key), b"", "", {"KV-Operation": "DEL"})

    def emit_event(self, tenant: str, task: str, event: str, data: dict[str, JsonValue] | None = None) -> None:
        """Record an event, and publish it once the transaction is committed."""
        values = {"tenant": tenant, "task": task, "event": event, "at_s": time.time(), "data": data or {}}
        emitted = Event.model_validate(values)
        self.outbox.events.append((len(self.outbox.messages), emitted))
        self.post([OutboxMessage(streams.events(tenant, task), emitted, "")])

    def answer(self, tenant: str, task: str, event: str, data: dict[str, JsonValue]) -> None:
        """Publish an event after the commit, without a row or number: for ids that the tenant does not own."""
        values = {"tenant": tenant, "task": task, "event": event, "at_s": time.time(), "data": data}
        self.post([OutboxMessage(streams.events(tenant, task), Event.model_validate(values), "")])

    def record(self, *entries: audit.Accepted | audit.Refused) -> None:
        """Add audit rows to this transaction."""
        self.audited.extend(entries)

    async def write_outbox(self) -> None:
        """Write all posted messages, events and audit entries; events get their numbers first."""
        if self.audited:
            await audit.write(self.connection, self.audited)
        if self.outbox.events:
            events = await self._number_events()
            await _WRITE_WITH_EVENTS.run(self.connection, _message.of(self.outbox.messages) | _event.of(events))
            if subscribed := [event for _, event in self.outbox.events if webhooks.wanted(event)]:
                await webhooks.add_deliveries(self.connection, subscribed)
        elif self.outbox.messages:
            await _WRITE.run(self.connection, _message.of(self.outbox.messages))

    async def _number_events(self) -> list[tuple[str, str, str, str, int]]:
        """Number the events, in their messages too; returns the events' rows.

        The counters stay locked until the transaction ends, so that events of a task become visible in the order of their numbers.
        """
        counts = Counter((event.tenant, event.task) for _, event in self.outbox.events)
        given = await _NUMBER.run(self.connection, _counted.of([(*key, count) for key, count in sorted(counts.items())]))
        last = {(row.tenant, row.task): row.last - counts[row.tenant, row.task] for row in given}
        rows: list[tuple[str, str, str, str, int]] = []
        for place, event in self.outbox.events:
            key = event.tenant, event.task
            last[key] += 1
            subject, message_id, headers, _ = self.outbox.messages[place]
            body = event.model_copy(update={"number": last[key]}).encode()
            self.outbox.messages[place] = subject, message_id, headers, body
            rows.append((*key, event.event, json.dumps(event.data), last[key]))
        return rows


_message = Rows("message", subject=Text, message_id=Text, headers=Text, body=LargeBinary)
_posted = select(_message.c.subject, _message.c.message_id, cast(_message.c.headers, JSONB), _message.c.body)
_counted = Rows("counted", tenant=Text, task=Text, count=BigInteger)
_numbers = insert(event_numbers).from_select(
    ["tenant", "task", "last"],
    select(_counted.c.tenant, _counted.c.task, _counted.c.count).order_by(_counted.c.tenant, _counted.c.task),  # locked in one order
)
_NUMBER = Statement(
    _numbers.on_conflict_do_update(
        index_elements=[event_numbers.c.tenant, event_numbers.c.task], set_={"last": event_numbers.c.last + _numbers.excluded.last}
    ).returning(event_numbers.c.tenant, event_numbers.c.task, event_numbers.c.last)
)
_event = Rows("event", tenant=Text, task=Text, event=Text, data=Text, number=BigInteger)
_emitted = select(_event.c.tenant, _event.c.task, _event.c.event, cast(_event.c.data, JSONB), _event.c.number)
_recorded = insert(events).from_select(["tenant", "task", "event", "data", "number"], _emitted).cte("recorded")
_write = insert(outbox).from_select(["subject", "message_id", "headers", "body"], _posted)
_WRITE, _WRITE_WITH_EVENTS = Statement(_write), Statement(_write.add_cte(_recorded))
