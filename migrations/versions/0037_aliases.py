"""Aliases: names of tenants for versions of their tasks."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "aliases",
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_aliases_tenant"), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("task", sa.Text(), sa.ForeignKey("tasks.id", name="fk_aliases_task"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("adapter", JSONB(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("version > 0", name=op.f("ck_aliases_version")),
    )
    op.create_index("ix_aliases_task", "aliases", ["task"])


def downgrade() -> None:
    op.drop_table("aliases")
