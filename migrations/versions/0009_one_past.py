"""PostgreSQL knows how much of its outbox NATS has, and the name of its past."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "relay",
        sa.Column("only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("deployment", sa.Text(), server_default=sa.text("gen_random_uuid()::text"), nullable=False),
        sa.Column("position", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint('"only"', name=op.f("ck_relay_one_row")),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_relay")),
    )
    op.execute("INSERT INTO relay DEFAULT VALUES")


def downgrade() -> None:
    op.drop_table("relay")
