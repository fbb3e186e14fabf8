"""Limits of HTTP requests, served tokens and streams. Without a value the gateway's settings hold."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

LIMITS = (
    *("requests_per_minute", "key_requests_per_minute", "tokens_per_minute", "key_tokens_per_minute", "max_streams", "key_max_streams"),
)


def upgrade() -> None:
    for name in LIMITS:
        op.add_column("limits", sa.Column(name, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in LIMITS:
        op.drop_column("limits", name)
