"""Tables of who may come in: public keys. Seeds and tokens are nowhere in this database."""

import sqlalchemy as sa

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
