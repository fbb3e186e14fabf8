"""Tables of the packages and files that tenants upload."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from scheduler_svc.base.states import PackageKind, PackageState
from scheduler_svc.base.tables.base import metadata, moment, now_by_default, one_of

packages = sa.Table(
    "packages",
    metadata,
    sa.Column("tenant", sa.Text, sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),  # SHA-256 of its wheel, or of the file
    sa.Column("number", sa.BigInteger, sa.Identity(), nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False, server_default=sa.text("'package'")),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("objection", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("name", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("version", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("environments", JSONB, nullable=False, server_default=sa.text("'[]'")),  # names, and components of their rewards
    sa.Column("rows", sa.BigInteger, nullable=False, server_default=sa.text("0")),  # of a file
    sa.Column("requests", JSONB, nullable=False, server_default=sa.text("'[]'")),  # the latest ids of requests, which events repeat
    now_by_default("uploaded_at"),
    now_by_default("changed_at"),  # by its last part, or its state
    moment("sent_at"),  # its check was, to the environment service
    moment("checked_at"),
    one_of("state", PackageState, "state"),
    one_of("kind", PackageKind, "kind"),
    sa.CheckConstraint("digest ~ '^[0-9a-f]{64}$'", name="digest"),
    sa.CheckConstraint("size_bytes > 0", name="size"),
    sa.CheckConstraint("state <> 'refused' OR objection <> ''", name="refusal_has_reason"),
    sa.CheckConstraint("state <> 'usable' OR (name <> '' AND (kind = 'file' OR environments <> '[]'))", name="usable_has_environments"),
    sa.CheckConstraint("state <> 'usable' OR (rows > 0) = (kind = 'file')", name="usable_has_rows"),
    sa.Index("ix_packages_unfinished", "changed_at", postgresql_where=sa.text("state <> 'usable'")),
)

package_parts = sa.Table(
    "package_parts",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("begin", sa.Integer, primary_key=True),  # bytes of the wheel before it
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "digest"], ["packages.tenant", "packages.digest"], ondelete="CASCADE"),
)
