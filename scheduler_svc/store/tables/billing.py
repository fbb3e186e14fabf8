"""Tables of what work costs: the ledger, prices, budgets, what deleted tasks used, and packages' bytes."""

import sqlalchemy as sa

from common.messages.billing import KINDS
from scheduler_svc.store.tables.base import metadata, now_by_default

_is_a_kind = f"kind IN ({', '.join(map(repr, KINDS))})"

ledger = sa.Table(
    "ledger",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column("task", sa.Text, sa.ForeignKey("tasks.id", ondelete="CASCADE"), nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # the group's, the step's version, or the hour since 1970
    sa.Column("tokens", sa.BigInteger, nullable=False),  # or milliseconds, or bytes for an hour, as the kind says
    now_by_default("at"),
    sa.Column("paid_by", sa.Text, nullable=False, server_default=sa.text("'tenant'")),
    sa.CheckConstraint(_is_a_kind, name="kind"),
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
    sa.CheckConstraint(_is_a_kind, name="kind"),
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
    sa.Column("pool", sa.Text, nullable=False),  # empty for tasks that were deleted before this table
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
