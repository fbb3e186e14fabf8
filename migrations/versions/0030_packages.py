"""Packages that tenants upload, the limit of their number, and the package of a task."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

EMPTY = sa.text("''")
NOW = sa.func.now()
STATES = "'uploading', 'checking', 'usable', 'refused', 'deleting'"


def upgrade() -> None:
    op.create_table(
        "packages",
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_packages_tenant"), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("number", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        *(sa.Column(name, sa.Text(), nullable=False, server_default=EMPTY) for name in ("objection", "name", "version")),
        *(sa.Column(name, JSONB(), nullable=False, server_default=sa.text("'[]'")) for name in ("environments", "requests")),
        *(sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=NOW) for name in ("uploaded_at", "changed_at")),
        *(sa.Column(name, sa.DateTime(timezone=True), nullable=True) for name in ("sent_at", "checked_at")),
        sa.UniqueConstraint("number", name="uq_packages_number"),
        sa.CheckConstraint(f"state IN ({STATES})", name="ck_packages_state"),
        sa.CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="ck_packages_digest"),
        sa.CheckConstraint("size_bytes > 0", name="ck_packages_size"),
        sa.CheckConstraint("state <> 'refused' OR objection <> ''", name="ck_packages_refusal_has_reason"),
        sa.CheckConstraint("state <> 'usable' OR (name <> '' AND environments <> '[]')", name="ck_packages_usable_has_environments"),
    )
    op.create_index("ix_packages_unfinished", "packages", ["changed_at"], postgresql_where=sa.text("state <> 'usable'"))
    op.create_table(
        "package_parts",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("begin", sa.Integer(), primary_key=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "digest"], ["packages.tenant", "packages.digest"], name="fk_package_parts_tenant_digest", ondelete="CASCADE"
        ),
    )
    op.add_column("tasks", sa.Column("package", JSONB(), nullable=True))
    op.create_index("ix_tasks_package", "tasks", ["tenant"], postgresql_where=sa.text("package IS NOT NULL"))
    op.add_column("limits", sa.Column("max_packages", sa.BigInteger(), nullable=True))
    op.execute("UPDATE limits SET max_packages = 100 WHERE tenant = '_all'")


def downgrade() -> None:
    op.drop_column("limits", "max_packages")
    op.drop_index("ix_tasks_package", "tasks")
    op.drop_column("tasks", "package")
    op.drop_table("package_parts")
    op.drop_table("packages")
