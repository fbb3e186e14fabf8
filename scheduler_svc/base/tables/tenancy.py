"""Tables of who may come in, how much each may do, who has done what, and names for versions of tasks.

Of keys the public part only: no seed is here.
"""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from common.limits import LIMITS
from scheduler_svc.base.tables.base import metadata, moment, now_by_default

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
    sa.Column("http_digest", sa.Text, unique=True),  # of an HTTP key: SHA-256 of its text
    sa.Column("http_token", sa.Text),  # of an HTTP key: what its seed must go with; public
    sa.CheckConstraint("role IN ('owner', 'member', 'reader', 'admin')", name="role"),
    sa.CheckConstraint("(role = 'admin') = (tenant IS NULL)", name="admin_has_no_tenant"),
    sa.CheckConstraint("key ~ '^U[A-Z2-7]{55}$'", name="public"),
    sa.CheckConstraint("(http_digest IS NULL) = (http_token IS NULL)", name="http"),
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
    sa.Column("job", sa.BigInteger),  # its sequence in its stream
    sa.CheckConstraint("outcome IN ('accepted', 'rejected', 'refused')", name="outcome"),
    sa.CheckConstraint("via IN ('key', 'short form', 'ask', 'scheduler')", name="via"),
    sa.CheckConstraint("(outcome = 'refused') = (hour IS NOT NULL) AND (outcome = 'accepted') = (reason = '')", name="counted"),
    sa.CheckConstraint("count > 0 AND (count = 1 OR hour IS NOT NULL)", name="count"),
    sa.Index(None, "tenant", "id"),
    sa.Index(None, "job"),
    sa.Index(None, "target", "at"),
    sa.Index("uq_audit_refused", "tenant", "key", "verb", "reason", "hour", unique=True, postgresql_where=sa.text("hour IS NOT NULL")),
)

limits = sa.Table(
    "limits",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),  # or `_all`, for the defaults of all
    # Absent for a tenant: the default holds. Absent for `_all`: there is no limit, as with NO_LIMIT (`common/limits.py`).
    *(sa.Column(name, sa.BigInteger) for name in LIMITS),
)

rates = sa.Table(
    "rates",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("used", sa.Double, nullable=False),  # requests, less those that the pace of the limit has given back
    sa.Column("granted", sa.Integer, nullable=False),  # of the latest that were asked for
    sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("kind IN ('jobs', 'asks')", name="kind"),
    prefixes=["UNLOGGED"],  # empty after a crash of PostgreSQL, which forgives a minute
)

# Names for versions of tasks.
aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), nullable=False),  # no cascade: a task that has one is not deleted
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("adapter", JSONB, nullable=False),
    sa.Column("request", sa.Text, nullable=False),  # of the last change, by which a redelivered job is recognized
    now_by_default("changed_at"),
    sa.CheckConstraint("version > 0", name="version"),
    sa.Index(None, "task"),
)
