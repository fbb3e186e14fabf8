"""Tables of what work costs: the ledger, prices, budgets, what deleted tasks used, packages' bytes, and served tokens."""

from collections.abc import Sequence

import sqlalchemy as sa

from common.messages.tenancy.billing import KINDS, LEDGER_KINDS, SERVED_KINDS
from scheduler_svc.base.tables.base import metadata, now_by_default


def _is_of(kinds: Sequence[str]) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"kind IN ({', '.join(map(repr, kinds))})", name="kind")


ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # the group's, the step's version, the hour since 1970, or the slice's
    sa.Column("tokens", sa.BigInteger, nullable=False),  # or milliseconds, or bytes for an hour, as the kind says
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
    sa.Column("pool", sa.Text),  # absent for all pools that have no price of their own
    sa.Column("price", sa.Numeric, nullable=False),
    sa.Column("per", sa.BigInteger, nullable=False),  # of the kind's units; a power of ten, so that no digit is lost
    sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),  # a trigger sets an absent one to now
    sa.Column("request", sa.Text, unique=True),  # of the job that set it
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
    sa.Column("begins_at", sa.DateTime(timezone=True), nullable=False),  # the period that `before` is of
    sa.Column("before", sa.Numeric, nullable=False),  # what the tenant paid before that period
    sa.Column("reported", sa.Text, nullable=False, server_default=sa.text("''")),  # by an event, in this period
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
    sa.Column("day", sa.Date, primary_key=True),  # by UTC
    sa.Column("hour", sa.Integer, nullable=False),  # the last one that is counted, since 1970
    sa.Column("quantity", sa.Numeric, nullable=False),  # bytes, once for each hour
    sa.Column("money", sa.Numeric, nullable=False),  # at the price of each hour
)

served_requests = sa.Table(
    "served_requests",
    metadata,
    sa.Column("request", sa.Text, primary_key=True),  # so that each is booked once; rows are deleted by whole days
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("key", sa.Text),
    sa.Column("pool", sa.Text, nullable=False),
    sa.Column("task", sa.Text),  # absent for the base model; no reference, as the task may be deleted
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
    sa.Column("day", sa.Date, primary_key=True),  # by UTC
    sa.Column("pool", sa.Text, primary_key=True),
    sa.Column("task", sa.Text, primary_key=True),  # empty for the base model
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("quantity", sa.BigInteger, nullable=False),
    sa.Column("money", sa.Numeric, nullable=False),  # at the price of each request's booking
    _is_of(SERVED_KINDS),
)
