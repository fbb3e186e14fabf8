"""Roles of tenants. Rights and row-level security of all roles are given after each migration, by `scheduler_svc.migrate`."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Roles stay: they belong to the server, and may own or read other databases of it.
WITHOUT_RIGHTS = """
DO $$ DECLARE r record; BEGIN
    FOR r IN SELECT policyname, tablename FROM pg_policies WHERE schemaname = 'public' LOOP
        EXECUTE format('DROP POLICY %I ON public.%I', r.policyname, r.tablename);
    END LOOP;
    FOR r IN SELECT c.oid::regclass AS name, c.relkind FROM pg_class c
             WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v') LOOP
        IF r.relkind = 'v' THEN EXECUTE format('ALTER VIEW %s RESET (security_invoker)', r.name);
        ELSE EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', r.name); END IF;
    END LOOP;
    FOR r IN SELECT rolname FROM pg_roles WHERE rolname IN ('marlaas_app', 'marlaas_reader', 'marlaas_tenants') LOOP
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA public FROM %I', r.rolname);
        EXECUTE format('REVOKE ALL ON SCHEMA public FROM %I', r.rolname);
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.create_table(
        "tenant_roles",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_tenant_roles_tenant"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_tenant_roles")),
        sa.UniqueConstraint("tenant", name=op.f("uq_tenant_roles_tenant")),
    )


def downgrade() -> None:
    op.execute(WITHOUT_RIGHTS)
    op.execute("COMMENT ON TABLE alembic_version IS NULL")
    op.drop_table("tenant_roles")
