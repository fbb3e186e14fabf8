"""HTTP keys: their digest and token, which are public."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("http_digest", "http_token"):
        op.add_column("keys", sa.Column(name, sa.Text(), nullable=True))
    op.create_unique_constraint(op.f("uq_keys_http_digest"), "keys", ["http_digest"])
    op.create_check_constraint(op.f("ck_keys_http"), "keys", "(http_digest IS NULL) = (http_token IS NULL)")


def downgrade() -> None:
    op.drop_constraint(op.f("ck_keys_http"), "keys")
    op.drop_constraint(op.f("uq_keys_http_digest"), "keys")
    for name in ("http_token", "http_digest"):
        op.drop_column("keys", name)
