"""Tables of who may come in, public keys, and of who has done what. Seeds and tokens are nowhere in this database."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.store.tables.base import metadata, moment, now_by_default

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),  # public
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id")),  # absent for operators' keys, of the role admin
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    now_by_default("created_at"),
    moment("ends_at"),
    moment("revoked_at"),
    moment("last_used_at"),
    sa.CheckConstraint("role IN ('owner', 'member', 'reader', 'admin')", name="role"),
    sa.CheckConstraint("(role = 'admin') = (tenant IS NULL)", name="admin_has_no_tenant"),
    sa.CheckConstraint("key ~ '^U[A-Z2-7]{55}$'", name="public"),
    sa.Index(None, "tenant"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    now_by_default("at"),
    sa.Column("tenant", sa.Text, nullable=False),  # empty where none that there is was named; no reference: rows stay
    sa.Column("key", sa.Text, nullable=False, server_default=sa.text("''")),  # public; empty where none was named
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
    moment("hour"),  # in which refusals are counted; absent for what was accepted
    sa.Column("count", sa.BigInteger, nullable=False, server_default=sa.text("1")),  # a trigger lets it grow, and nothing else change
    sa.Column("detail", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("job", sa.BigInteger),  # its sequence in the stream JOBS
    sa.CheckConstraint("outcome IN ('accepted', 'refused')", name="outcome"),
    sa.CheckConstraint("via IN ('key', 'short form', 'ask', 'scheduler')", name="via"),
    sa.CheckConstraint("(outcome = 'refused') = (hour IS NOT NULL) AND (outcome = 'refused') = (reason <> '')", name="counted"),
    sa.CheckConstraint("count > 0 AND (count = 1 OR hour IS NOT NULL)", name="count"),
    sa.Index(None, "tenant", "id"),
    sa.Index(None, "job"),
    sa.Index(None, "target", "at"),
    sa.Index("uq_audit_refused", "tenant", "key", "verb", "reason", "hour", unique=True, postgresql_where=sa.text("hour IS NOT NULL")),
)
