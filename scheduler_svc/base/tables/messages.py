"""Tables of messages: events, the outbox, and dead letters."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.base.tables.base import metadata, moment, now_by_default

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("data", JSONB, nullable=False),
    now_by_default("at"),
    sa.Column("number", sa.BigInteger, nullable=False),  # among the events of this tenant and task
    sa.Index(None, "task", "id"),
    sa.UniqueConstraint("tenant", "task", "number"),
)

event_numbers = sa.Table(
    "event_numbers",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("last", sa.BigInteger, nullable=False),  # survives the events themselves, so that no number is given twice
)

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("headers", JSONB, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    now_by_default("created_at"),
)

relay = sa.Table(
    "relay",
    metadata,
    sa.Column("only", sa.Boolean, primary_key=True, server_default=sa.text("true")),
    sa.Column(
        "deployment", sa.Text, nullable=False, server_default=sa.text("gen_random_uuid()::text")
    ),  # names this history, see store_consistency.py
    sa.Column("position", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # the last row of the outbox that NATS confirmed
    sa.CheckConstraint('"only"', name="one_row"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False, unique=True),  # in the stream FAILED
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("task", sa.Text),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    now_by_default("at"),
    sa.Column("resent_by", sa.BigInteger),  # sequence of the requesting job in its stream
    moment("resent_at"),
    sa.Index(None, "task"),
    sa.Index("ix_dead_letters_sender", sa.text("split_part(subject, '.', 3)"), postgresql_where=sa.text("task IS NULL")),  # of a job
)
