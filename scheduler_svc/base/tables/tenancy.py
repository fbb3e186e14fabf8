"""Tables of tenants: keys and limits, billing, webhooks, and tenants' packages and aliases.

Only the public part of a key is stored, never its seed.
"""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from common.limits import LIMITS
from common.messages.tenancy.billing import KINDS, LEDGER_KINDS, SERVED_KINDS
from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables.base import metadata, moment, now_by_default, one_of

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),  # public key
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id")),  # absent for operators' keys (role admin)
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    now_by_default("created_at"),
    moment("ends_at"),
    moment("revoked_at"),
    moment("last_used_at"),
    sa.Column("http_digest", sa.Text, unique=True),  # of an HTTP key: SHA-256 of its text
    sa.Column("http_token", sa.Text),  # of an HTTP key: public token, used with its seed
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
    sa.Column("tenant", sa.Text, nullable=False),  # empty if the named tenant does not exist; no foreign key: rows stay
    sa.Column("key", sa.Text, nullable=False, server_default=sa.text("''")),  # public key; empty if none was named
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
    moment("hour"),  # hour in which refusals are counted; absent for accepted actions
    sa.Column("count", sa.BigInteger, nullable=False, server_default=sa.text("1")),  # a trigger allows it to grow, and no other change
    sa.Column("detail", JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("job", sa.BigInteger),  # stream sequence of the job
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
    sa.Column("tenant", sa.Text, primary_key=True),  # or `_all`, for every tenant's defaults
    # Absent for a tenant: the default applies. Absent for `_all`: no limit, as with NO_LIMIT (`common/limits.py`).
    *(sa.Column(name, sa.BigInteger) for name in LIMITS),
)

rates = sa.Table(
    "rates",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("used", sa.Double, nullable=False),  # leaky-bucket level, in requests
    sa.Column("granted", sa.Integer, nullable=False),  # by the latest decision
    sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    sa.CheckConstraint("kind IN ('jobs', 'asks')", name="kind"),
    prefixes=["UNLOGGED"],  # emptied by a crash of PostgreSQL, which resets one minute of usage
)


def _is_of(kinds: Sequence[str]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"kind IN ({', '.join(map(repr, kinds))})", name="kind")


ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # number of the group or slice, version of the step, or hour since 1970
    sa.Column("tokens", sa.BigInteger, nullable=False),  # or milliseconds, or bytes per hour, by kind
    now_by_default("at"),
    sa.Column("paid_by", sa.Text, nullable=False, server_default=sa.text("'tenant'")),
    _is_of(LEDGER_KINDS),
    sa.CheckConstraint("paid_by IN ('tenant', 'nobody')", name="paid_by"),
    sa.UniqueConstraint("task", "kind", "number"),
)

prices = sa.Table(
    "prices",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("pool", sa.Text),  # absent: for all pools without a price of their own
    sa.Column("price", sa.Numeric, nullable=False),
    sa.Column("per", sa.BigInteger, nullable=False),  # units of the kind per price; a power of ten, so that division is exact
    sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),  # a trigger sets a missing one to now
    sa.Column("request", sa.Text, unique=True),  # id of the request that set it
    _is_of(KINDS),
    sa.CheckConstraint("price >= 0 AND price < 'infinity'", name="price"),
    sa.CheckConstraint("per > 0 AND per::text ~ '^10*$'", name="per"),
    sa.Index(None, "kind", "pool", "valid_from"),
)

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("period", sa.Text, primary_key=True),
    sa.Column("unit", sa.Text, primary_key=True),
    sa.Column("amount", sa.Numeric, nullable=False),
    sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),  # start of the period to which `before` belongs
    sa.Column("before", sa.Numeric, nullable=False),  # amount paid before that period
    sa.Column("reported", sa.Text, nullable=False, server_default=sa.text("''")),  # last level reported by an event in this period
    sa.CheckConstraint("period IN ('day', 'month', 'total')", name="period"),
    sa.CheckConstraint("unit IN ('tokens', 'money')", name="unit"),
    sa.CheckConstraint("amount >= 0 AND amount < 'infinity'", name="amount"),
    sa.CheckConstraint("reported IN ('', 'nearly', 'used_up')", name="reported"),
)

deleted_usage = sa.Table(
    "deleted_usage",
    metadata,
    sa.Column("task", sa.Text, primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("quantity", sa.Numeric, nullable=False),
    sa.Column("money", sa.Numeric, nullable=False),
    sa.Index(None, "tenant", "day"),
)

package_usage = sa.Table(
    "package_usage",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),  # UTC
    sa.Column("hour", sa.Integer, nullable=False),  # last counted hour, since 1970
    sa.Column("quantity", sa.Numeric, nullable=False),  # byte-hours
    sa.Column("money", sa.Numeric, nullable=False),  # at each hour's price
)

served_requests = sa.Table(
    "served_requests",
    metadata,
    sa.Column("request", sa.Text, primary_key=True),  # unique, so that each is booked once; rows are deleted by whole days
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key", sa.Text),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("task", sa.Text),  # absent for the base model; no foreign key, as the task may be deleted
    sa.Column("version", sa.Integer),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.Integer, nullable=False),
    sa.Column("cached_tokens", sa.Integer, nullable=False),
    sa.Column("sampled_tokens", sa.Integer, nullable=False),
    now_by_default("at"),
    sa.CheckConstraint("(task IS NULL) = (version IS NULL)", name="base_has_no_version"),
    sa.CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens AND sampled_tokens >= 0", name="tokens"),
    sa.Index(None, "tenant"),
    sa.Index(None, "at"),
)

served_usage = sa.Table(
    "served_usage",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("day", sa.Date, primary_key=True),  # UTC
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),  # empty for the base model
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("quantity", sa.BigInteger, nullable=False),
    sa.Column("money", sa.Numeric, nullable=False),  # at the price when each request was booked
    _is_of(SERVED_KINDS),
)


webhooks = sa.Table(
    "webhooks",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("events", JSONB, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),  # encrypted: `webhooks/signing.py`
    sa.Column("request", sa.Text, nullable=False),  # id of the last change, which identifies a redelivered job
    now_by_default("changed_at"),
    sa.Column(
        "busy_until", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("'-infinity'")
    ),  # lease of the replica that sends
    sa.Column("dropped", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # messages dropped because too many were waiting
)

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("webhook", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False, server_default=sa.text("'msg_' || replace(gen_random_uuid()::text, '-', '')")),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # exactly as sent: the signature covers its bytes
    sa.Column("state", sa.Text, nullable=False, server_default=sa.text("'waiting'")),
    now_by_default("created_at"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    now_by_default("next_at"),
    sa.Column("status", sa.Integer),  # HTTP status of the last attempt
    sa.Column("reason", sa.Text, nullable=False, server_default=sa.text("''")),
    moment("ended_at"),
    sa.CheckConstraint("state IN ('waiting', 'delivered', 'given_up')", name="state"),
    sa.CheckConstraint("(state = 'waiting') = (ended_at IS NULL)", name="ended"),
    sa.ForeignKeyConstraint(["tenant", "webhook"], ["webhooks.tenant", "webhooks.name"], ondelete="CASCADE"),
    sa.Index(None, "tenant", "webhook", "id"),
    sa.Index("ix_webhook_deliveries_waiting", "next_at", postgresql_where=sa.text("state = 'waiting'")),
)


packages = sa.Table(
    "packages",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),  # SHA-256 of the wheel or file
    sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'package'")),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("objection", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("name", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("version", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("environments", JSONB, nullable=False, server_default=sa.text("'[]'")),  # names, and components of their rewards
    sa.Column("rows", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # rows of a file; 0 for packages
    sa.Column("requests", JSONB, nullable=False, server_default=sa.text("'[]'")),  # latest request ids, which events repeat
    now_by_default("uploaded_at"),
    now_by_default("changed_at"),  # time of its last part or change of state
    moment("sent_at"),  # time at which its check was sent to the environment service
    moment("checked_at"),
    one_of("state", PackageState, "state"),
    one_of("kind", PackageKind, "kind"),
    sa.CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="digest"),
    sa.CheckConstraint("size_bytes > 0", name="size"),
    sa.CheckConstraint("state <> 'refused' OR objection <> ''", name="refusal_has_reason"),
    sa.CheckConstraint("state <> 'usable' OR (name <> '' AND (kind = 'file' OR environments <> '[]'))", name="usable_has_environments"),
    sa.CheckConstraint("state <> 'usable' OR (rows > 0) = (kind = 'file')", name="usable_has_rows"),
    sa.Index("ix_packages_unfinished", "changed_at", postgresql_where=sa.text("state <> 'usable'")),
)

package_parts = sa.Table(
    "package_parts",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("begin", sa.Integer, primary_key=True),  # offset in bytes
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "digest"], ["packages.tenant", "packages.digest"], ondelete="CASCADE"),
)


aliases = sa.Table(
    "aliases",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id"), nullable=False),  # no cascade: a task with an alias is not deleted
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("adapter", JSONB, nullable=False),
    sa.Column("request", sa.Text, nullable=False),  # id of the last change, which identifies a redelivered job
    now_by_default("changed_at"),
    sa.CheckConstraint("version > 0", name="version"),
    sa.Index(None, "task"),
)
