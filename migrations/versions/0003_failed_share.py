"""`task_status` says how many of a task's latest groups failed."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

BEFORE = """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at
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
"""

LATEST = """LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline')) AS failed_groups,
           count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline') OR g.state IN ('ready', 'batched', 'trained')) AS ended_groups
    FROM (SELECT state, void_reason FROM groups WHERE task = t.id ORDER BY number DESC LIMIT 100) g) latest ON true
"""


def upgrade() -> None:
    added = "latest.failed_groups, latest.failed_groups::float8 / nullif(latest.ended_groups, 0) AS failed_share"
    op.execute(f"CREATE OR REPLACE VIEW task_status AS {BEFORE.replace('t.ended_at', f't.ended_at, {added}', 1)}{LATEST}")


def downgrade() -> None:
    """A view cannot lose columns by being replaced."""
    op.execute("DROP VIEW task_status")
    op.execute(f"CREATE VIEW task_status AS {BEFORE}")
