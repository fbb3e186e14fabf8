"""Deleted tasks leave what they consumed; what each task stores is counted; an alarm is raised once before the store is full."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

TASK_STORAGE = """
SELECT t.id AS task, t.tenant, t.state,
       coalesce(sum(b.bytes) FILTER (WHERE b.kind = 'adapter'), 0)::bigint AS adapter_bytes,
       coalesce(sum(b.bytes) FILTER (WHERE b.kind = 'checkpoint'), 0)::bigint AS checkpoint_bytes,
       coalesce(sum(b.bytes) FILTER (WHERE b.kind = 'batch'), 0)::bigint AS batch_bytes,
       coalesce(sum(b.bytes), 0)::bigint AS bytes,
       count(DISTINCT b.version) FILTER (WHERE b.kind = 'adapter') AS adapters,
       count(DISTINCT b.version) FILTER (WHERE b.kind = 'checkpoint') AS checkpoints
FROM (SELECT id, tenant, state FROM tasks UNION ALL SELECT id, tenant, 'deleted' FROM deleted_tasks) t
LEFT JOIN stored_blobs b ON b.task = t.id
GROUP BY t.id, t.tenant, t.state
HAVING t.state <> 'deleted' OR count(b.name) > 0
"""
TENANT_USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""
TENANT_USAGE_BEFORE = """
SELECT n.id AS tenant, n.weight,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'evaluation'), 0) AS evaluation_tokens
FROM tenants n LEFT JOIN ledger l ON l.tenant = n.id
GROUP BY n.id, n.weight
"""
# Triggers, and no statement of the scheduler's: one of the version before may still be at work when this has run.
COUNT = """
CREATE FUNCTION count_stored() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO stored_blobs (name, task, version, kind, bytes)
    SELECT ref ->> 'name', NEW.task, NEW.version + 1, kind, (ref ->> 'size_bytes')::bigint
    FROM (VALUES (NEW.adapter -> 'blob', 'adapter'), (NEW.checkpoint, 'checkpoint'), (NEW.batch, 'batch')) made (ref, kind)
    WHERE jsonb_typeof(ref) = 'object'
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$
"""
# What is no longer stored of it the next sweep finds.
STORED_BEFORE = """
INSERT INTO stored_blobs (name, task, version, kind, bytes)
SELECT ref ->> 'name', s.task, s.version + 1, kind, (ref ->> 'size_bytes')::bigint
FROM steps s CROSS JOIN LATERAL (
    VALUES (s.adapter -> 'blob', 'adapter'), (s.checkpoint, 'checkpoint'), (s.batch, 'batch')) made (ref, kind)
WHERE s.state = 'trained' AND jsonb_typeof(ref) = 'object'
ON CONFLICT DO NOTHING
"""


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "deleted_tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        *(sa.Column(f"{kind}_tokens", sa.BigInteger(), nullable=False) for kind in ("prompt", "sampled", "trained", "evaluation")),
        sa.Column("deleted_by", sa.BigInteger(), nullable=False),
        sa.Column("freed_bytes", sa.BigInteger(), nullable=True),
        sa.Column("submitted_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=False),
        sa.Column("deleted_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.id"], name=op.f("fk_deleted_tasks_tenant")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deleted_tasks")),
    )
    op.create_index("ix_deleted_tasks_tenant", "deleted_tasks", ["tenant"])
    op.create_index("ix_deleted_tasks_pending", "deleted_tasks", ["id"], postgresql_where=sa.text("freed_bytes IS NULL"))
    op.create_table(
        "stored_blobs",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("kind IN ('adapter', 'checkpoint', 'batch')", name=op.f("ck_stored_blobs_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_stored_blobs")),
    )
    op.create_index("ix_stored_blobs_task", "stored_blobs", ["task"])
    op.execute(STORED_BEFORE)
    op.execute(COUNT)
    op.execute(
        "CREATE TRIGGER count_stored AFTER UPDATE ON steps FOR EACH ROW "
        "WHEN (NEW.state = 'trained' AND OLD.state <> 'trained') EXECUTE FUNCTION count_stored()"
    )
    op.create_table(
        "store_alarm",
        sa.Column("only", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("raised", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("since", moment, server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint('"only"', name=op.f("ck_store_alarm_one_row")),
        sa.PrimaryKeyConstraint("only", name=op.f("pk_store_alarm")),
    )
    op.execute("INSERT INTO store_alarm DEFAULT VALUES")
    op.execute(f"CREATE OR REPLACE VIEW tenant_usage AS {TENANT_USAGE}")
    op.execute(f"CREATE VIEW task_storage AS {TASK_STORAGE}")


def downgrade() -> None:
    op.execute("DROP VIEW task_storage")
    op.execute("DROP VIEW tenant_usage")
    op.execute(f"CREATE VIEW tenant_usage AS {TENANT_USAGE_BEFORE}")
    op.drop_table("store_alarm")
    op.execute("DROP TRIGGER count_stored ON steps")
    op.execute("DROP FUNCTION count_stored()")
    op.drop_table("stored_blobs")
    op.drop_table("deleted_tasks")
