"""Bytes of packages on the bill: what each tenant's packages took up in the blob store, by day."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

TENANT_INVOICE = """
SELECT tenant, day, pool, kind, sum(quantity) AS quantity, sum(money) AS money
FROM (SELECT tenant, day, pool, kind, quantity, money FROM task_invoice
      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM deleted_usage{more}) used
GROUP BY tenant, day, pool, kind
"""
OF_PACKAGES = "\n      UNION ALL SELECT tenant, day, '', 'stored_byte_hours', quantity, money FROM package_usage"


def upgrade() -> None:
    op.create_table(
        "package_usage",
        sa.Column("tenant", sa.Text(), sa.ForeignKey("tenants.id", name="fk_package_usage_tenant"), primary_key=True),
        sa.Column("day", sa.Date(), primary_key=True),
        sa.Column("hour", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.Numeric(), nullable=False) for name in ("quantity", "money")),
    )
    op.execute(f"CREATE OR REPLACE VIEW tenant_invoice AS {TENANT_INVOICE.format(more=OF_PACKAGES)}")


def downgrade() -> None:
    op.execute(f"CREATE OR REPLACE VIEW tenant_invoice AS {TENANT_INVOICE.format(more='')}")
    op.drop_table("package_usage")
