"""A group whose members all earned the same may be void for that."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = ("groups", "trajectories")


def upgrade() -> None:
    _allow("'stale', 'cancelled', 'failed', 'deadline', 'zero_variance'")
    op.create_index(
        "ix_groups_refilled", "groups", ["task", "version"], unique=False, postgresql_where=sa.text("void_reason = 'zero_variance'")
    )


def downgrade() -> None:
    """What was void for equal rewards becomes stale, the only reason that says as little about a failure."""
    op.drop_index("ix_groups_refilled", "groups")
    for table in TABLES:
        op.execute(sa.text(f"UPDATE {table} SET void_reason = 'stale' WHERE void_reason = 'zero_variance'"))
    _allow("'stale', 'cancelled', 'failed', 'deadline'")


def _allow(reasons: str) -> None:
    for table in TABLES:
        op.drop_constraint(op.f(f"ck_{table}_void_reason"), table, type_="check")
        op.create_check_constraint(op.f(f"ck_{table}_void_reason"), table, f"void_reason IN ({reasons})")
