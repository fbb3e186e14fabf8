"""The schema's metadata; columns and constraints that many tables have; tables for messages: events, the outbox, dead letters."""

from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def one_of(column: str, states: type[StrEnum], name: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"{column} IN ({', '.join(repr(state.value) for state in states)})", name=name)


def now_by_default(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())


def moment(name: str, *, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


events = sa.Table(
    "events",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("task", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("data", JSONB, nullable=False),
    now_by_default("at"),
    sa.Column("number", sa.BigInteger, nullable=False),  # per tenant and task
    sa.Index(None, "task", "id"),
    sa.UniqueConstraint("tenant", "task", "number"),
)

event_numbers = sa.Table(
    "event_numbers",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("last", sa.BigInteger, nullable=False),  # outlives the events, so that no number is reused
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
    ),  # identifies this history, see upkeep/outbox.py
    sa.Column("position", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # last row of the outbox that NATS confirmed
    sa.CheckConstraint('"only"', name="one_row"),
)

dead_letters = sa.Table(
    "dead_letters",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False, unique=True),  # in stream FAILED
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("task", sa.Text),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    now_by_default("at"),
    sa.Column("resent_by", sa.BigInteger),  # sequence of the requesting job in its stream
    moment("resent_at"),
    sa.Index(None, "task"),
    sa.Index("ix_dead_letters_sender", sa.text("split_part(subject, '.', 3)"), postgresql_where=sa.text("task IS NULL")),  # sender of a job
)
