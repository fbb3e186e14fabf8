"""Webhooks of tenants, and the messages to them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def _moment(name: str, default: str | None = None) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), server_default=sa.text(default) if default else None, nullable=default is None)


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_webhooks_tenant"), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", JSONB(), nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        _moment("changed_at", "now()"),
        _moment("busy_until", "'-infinity'"),
        sa.Column("dropped", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default=sa.text("'msg_' || replace(gen_random_uuid()::text, '-', '')"), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default=sa.text("'waiting'"), nullable=False),
        _moment("created_at", "now()"),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _moment("next_at", "now()"),
        sa.Column("status", sa.Integer()),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        _moment("ended_at"),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'given_up')", name=op.f("ck_webhook_deliveries_state")),
        sa.CheckConstraint("(state = 'waiting') = (ended_at IS NULL)", name=op.f("ck_webhook_deliveries_ended")),
        sa.ForeignKeyConstraint(
            ["tenant", "webhook"], ["webhooks.tenant", "webhooks.name"], name="fk_webhook_deliveries_tenant", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_webhook_deliveries_tenant_webhook_id", "webhook_deliveries", ["tenant", "webhook", "id"])
    op.create_index("ix_webhook_deliveries_waiting", "webhook_deliveries", ["next_at"], postgresql_where=sa.text("state = 'waiting'"))


def downgrade() -> None:
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
