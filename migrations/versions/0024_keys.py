"""Accounts of tenants, suspension, and public keys."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("account", sa.Text(), nullable=True))
    op.add_column("tenants", sa.Column("suspended_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('owner', 'member', 'reader', 'admin')", name=op.f("ck_keys_role")),
        sa.CheckConstraint("(role = 'admin') = (tenant IS NULL)", name=op.f("ck_keys_admin_has_no_tenant")),
        sa.CheckConstraint("key ~ '^U[A-Z2-7]{55}$'", name=op.f("ck_keys_public")),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_keys_tenant")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_keys")),
    )
    op.create_index(op.f("ix_keys_tenant"), "keys", ["tenant"])


def downgrade() -> None:
    op.drop_table("keys")
    op.drop_column("tenants", "suspended_at")
    op.drop_column("tenants", "account")
