"""Files of tenants, which are kept as packages are."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

FILE = "kind = 'file'"
USABLE = "state <> 'usable' OR (name <> '' AND {has})"
ENVIRONMENTS = "environments <> '[]'"
FORMER_NAME = "ck_packages_ck_packages_usable_has_environments"
NAME = "ck_packages_usable_has_environments"


def upgrade() -> None:
    op.add_column("packages", sa.Column("kind", sa.Text(), nullable=False, server_default=sa.text("'package'")))
    op.add_column("packages", sa.Column("rows", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.create_check_constraint(op.f("ck_packages_kind"), "packages", "kind IN ('package', 'file')")
    op.create_check_constraint(op.f("ck_packages_usable_has_rows"), "packages", f"state <> 'usable' OR (rows > 0) = ({FILE})")
    op.drop_constraint(op.f(FORMER_NAME), "packages")
    op.create_check_constraint(op.f(NAME), "packages", USABLE.format(has=f"({FILE} OR {ENVIRONMENTS})"))


def downgrade() -> None:
    op.execute(f"DELETE FROM packages WHERE {FILE}")
    op.drop_constraint(op.f(NAME), "packages")
    op.create_check_constraint(op.f(FORMER_NAME), "packages", USABLE.format(has=ENVIRONMENTS))
    op.drop_constraint(op.f("ck_packages_usable_has_rows"), "packages")
    op.drop_constraint(op.f("ck_packages_kind"), "packages")
    op.drop_column("packages", "rows")
    op.drop_column("packages", "kind")
