"""The audit: who has done what. Rows are only added; the count of refusals grows, and the owner of the schema deletes old rows."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

KEEP_AUDIT = """
CREATE FUNCTION keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_user = (SELECT relowner::regrole::text FROM pg_class WHERE oid = TG_RELID) THEN
        RETURN OLD;
    ELSIF TG_OP = 'UPDATE' AND OLD.outcome = 'refused' AND NEW.count > OLD.count
          AND to_jsonb(NEW) - 'count' = to_jsonb(OLD) - 'count' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a row of the audit is never changed; the owner of the schema deletes old ones';
END $$
"""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("verb", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=True),
        sa.Column("count", sa.BigInteger(), server_default=sa.text("1"), nullable=False),
        sa.Column("detail", JSONB(), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("outcome IN ('accepted', 'refused')", name=op.f("ck_audit_outcome")),
        sa.CheckConstraint("via IN ('key', 'short form', 'ask', 'scheduler')", name=op.f("ck_audit_via")),
        sa.CheckConstraint(
            "(outcome = 'refused') = (hour IS NOT NULL) AND (outcome = 'refused') = (reason <> '')", name=op.f("ck_audit_counted")
        ),
        sa.CheckConstraint("count > 0 AND (count = 1 OR hour IS NOT NULL)", name=op.f("ck_audit_count")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_tenant_id"), "audit", ["tenant", "id"])
    op.create_index(op.f("ix_audit_job"), "audit", ["job"])
    op.create_index(op.f("ix_audit_target_at"), "audit", ["target", "at"])
    counted = ["tenant", "key", "verb", "reason", "hour"]
    op.create_index("uq_audit_refused", "audit", counted, unique=True, postgresql_where=sa.text("hour IS NOT NULL"))
    op.execute(KEEP_AUDIT)
    op.execute("CREATE TRIGGER keep_audit BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION keep_audit()")
    op.execute("CREATE TRIGGER keep_all_audit BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION keep_audit()")


def downgrade() -> None:
    op.drop_table("audit")
    op.execute("DROP FUNCTION keep_audit()")
