"""A dead letter's message may be sent again; each task shows how many it has."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TASK_STATUS = """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at,
       latest.failed_groups, latest.failed_groups::float8 / nullif(latest.ended_groups, 0) AS failed_share,
       (SELECT count(*) FROM dead_letters d WHERE d.task = t.id) AS dead_letters
FROM tasks t
LEFT JOIN LATERAL (SELECT s.reward FROM steps s WHERE s.task = t.id AND s.state = 'trained' ORDER BY s.version DESC LIMIT 1) last ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.state = 'open') AS open_groups,
           count(*) FILTER (WHERE g.state = 'ready') AS ready_groups,
           count(*) FILTER (WHERE g.state = 'batched') AS batched_groups
    FROM groups g WHERE g.task = t.id AND g.state IN ('open', 'ready', 'batched')) live ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens
    FROM ledger l WHERE l.task = t.id) spent ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline')) AS failed_groups,
           count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline') OR g.state IN ('ready', 'batched', 'trained')) AS ended_groups
    FROM (SELECT state, void_reason FROM groups WHERE task = t.id ORDER BY number DESC LIMIT 100) g) latest ON true
"""
COLUMN_ADDED = """,
       (SELECT count(*) FROM dead_letters d WHERE d.task = t.id) AS dead_letters"""


def upgrade() -> None:
    op.add_column("dead_letters", sa.Column("resent_by", sa.BigInteger(), nullable=True))
    op.add_column("dead_letters", sa.Column("resent_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_dead_letters_task", "dead_letters", ["task"], unique=False)
    op.execute(f"CREATE OR REPLACE VIEW task_status AS {TASK_STATUS}")


def downgrade() -> None:
    op.execute("DROP VIEW task_status")  # a column cannot be taken out of a view
    op.execute(f"CREATE VIEW task_status AS {TASK_STATUS.replace(COLUMN_ADDED, '')}")
    op.drop_index("ix_dead_letters_task", "dead_letters")
    op.drop_column("dead_letters", "resent_at")
    op.drop_column("dead_letters", "resent_by")
