"""Evaluations on held-out prompts, beside what is trained."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks{more}
FROM tenants n LEFT JOIN ledger l ON l.tenant = n.id
GROUP BY n.id, n.weight
"""
EVALUATION_TOKENS = ",\n       coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'evaluation'), 0) AS evaluation_tokens"

TASK_EVALUATIONS = """
SELECT e.task, t.tenant, e.version, e.state, e.reward, e.results -> 'pass_at' AS pass_at, (e.results ->> 'prompts')::int AS prompts,
       (e.results ->> 'failed_share')::float8 AS failed_share, (e.results ->> 'response_length')::float8 AS response_length,
       (e.results ->> 'truncated_share')::float8 AS truncated_share,
       e.planned_at, e.finished_at, extract(epoch FROM e.finished_at - e.planned_at) AS took_s
FROM evaluations e JOIN tasks t ON t.id = e.task
"""


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("adapter", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("results", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('running', 'finished', 'void')", name=op.f("ck_evaluations_state")),
        sa.ForeignKeyConstraint(["task"], ["tasks.id"], name=op.f("fk_evaluations_task"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("task", "version", name=op.f("pk_evaluations")),
    )
    op.create_index("ix_evaluations_running", "evaluations", ["task"], unique=False, postgresql_where=sa.text("state = 'running'"))
    op.create_table(
        "evaluation_groups",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("prompt", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("charged_tokens", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state <> 'open' OR deadline_at IS NOT NULL", name=op.f("ck_evaluation_groups_open_has_deadline")),
        sa.CheckConstraint("state IN ('planned', 'open', 'ended')", name=op.f("ck_evaluation_groups_state")),
        sa.ForeignKeyConstraint(
            ["task", "version"], ["evaluations.task", "evaluations.version"], name=op.f("fk_evaluation_groups_task"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("task", "number", name=op.f("pk_evaluation_groups")),
    )
    op.create_index(
        "ix_evaluation_groups_live",
        "evaluation_groups",
        ["task", "number"],
        unique=False,
        postgresql_where=sa.text("state IN ('planned', 'open')"),
    )
    op.create_table(
        "evaluation_members",
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("sampled_tokens", sa.Integer(), nullable=False),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.CheckConstraint("(reward IS NULL) = (failure IS NOT NULL)", name=op.f("ck_evaluation_members_scored_or_failed")),
        sa.ForeignKeyConstraint(
            ["task", "number"],
            ["evaluation_groups.task", "evaluation_groups.number"],
            name=op.f("fk_evaluation_members_task"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("task", "number", "member", name=op.f("pk_evaluation_members")),
    )
    _allow("'prompt', 'sampled', 'trained', 'evaluation'")
    op.execute(f"CREATE OR REPLACE VIEW tenant_usage AS {USAGE.format(more=EVALUATION_TOKENS)}")
    op.execute(f"CREATE VIEW task_evaluations AS {TASK_EVALUATIONS}")


def downgrade() -> None:
    """What evaluations consumed is no longer booked anywhere."""
    op.execute("DROP VIEW task_evaluations")
    op.execute("DROP VIEW tenant_usage")
    op.execute(f"CREATE VIEW tenant_usage AS {USAGE.format(more='')}")
    op.execute("DELETE FROM ledger WHERE kind = 'evaluation'")
    _allow("'prompt', 'sampled', 'trained'")
    for table in ("evaluation_members", "evaluation_groups", "evaluations"):
        op.drop_table(table)


def _allow(kinds: str) -> None:
    op.drop_constraint(op.f("ck_ledger_kind"), "ledger", type_="check")
    op.create_check_constraint(op.f("ck_ledger_kind"), "ledger", f"kind IN ({kinds})")
