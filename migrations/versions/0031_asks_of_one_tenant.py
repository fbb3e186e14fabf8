"""Indexes and a view with which an ask reads its tenant's rows only; rejected tasks in the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TASK_INVOICE = """
SELECT l.task, {tenant}.tenant, (l.at AT TIME ZONE 'UTC')::date AS day, t.pool,
       CASE WHEN l.paid_by = 'tenant' THEN l.kind WHEN l.kind = 'env_ms' THEN 'void_env_ms' ELSE 'void' END AS kind,
       sum(l.tokens) AS quantity,
       sum(CASE WHEN l.paid_by = 'tenant' THEN l.tokens * coalesce(p.each, 0) ELSE 0 END) AS money
FROM ledger l JOIN tasks t ON t.id = l.task
LEFT JOIN LATERAL (
    SELECT price * ('1e-' || (length(per::text) - 1))::numeric AS each FROM prices
    WHERE prices.kind = l.kind AND (prices.pool IS NULL OR prices.pool = t.pool) AND prices.valid_from <= l.at
    ORDER BY prices.pool, prices.valid_from DESC, prices.id DESC LIMIT 1) p ON true
GROUP BY 1, 2, 3, 4, 5
"""
OUTCOMES = {
    "ck_audit_outcome": (
        "outcome IN ('accepted', 'refused')",
        "outcome IN ('accepted', 'rejected', 'refused')",
    ),
    "ck_audit_counted": (
        "(outcome = 'refused') = (hour IS NOT NULL) AND (outcome = 'refused') = (reason <> '')",
        "(outcome = 'refused') = (hour IS NOT NULL) AND (outcome = 'accepted') = (reason = '')",
    ),
}
"""Constraint → its condition before and after."""


def _set_outcomes(version: int) -> None:
    for name, conditions in OUTCOMES.items():
        op.drop_constraint(op.f(name), "audit")
        op.create_check_constraint(op.f(name), "audit", conditions[version])


def upgrade() -> None:
    _set_outcomes(1)
    op.create_index("ix_tasks_tenant_id", "tasks", ["tenant", "id"])
    op.drop_index("ix_tasks_tenant", "tasks")
    op.create_index(
        "ix_dead_letters_sender", "dead_letters", [sa.text("split_part(subject, '.', 3)")], postgresql_where=sa.text("task IS NULL")
    )
    op.create_index("ix_steps_trained", "steps", ["trained_at"], postgresql_where=sa.text("state = 'trained'"))
    op.execute(f"CREATE OR REPLACE VIEW task_invoice AS {TASK_INVOICE.format(tenant='t')}")


def downgrade() -> None:
    op.execute("DELETE FROM audit WHERE outcome = 'rejected'")
    _set_outcomes(0)
    op.execute(f"CREATE OR REPLACE VIEW task_invoice AS {TASK_INVOICE.format(tenant='l')}")
    op.drop_index("ix_steps_trained", "steps")
    op.drop_index("ix_dead_letters_sender", "dead_letters")
    op.create_index("ix_tasks_tenant", "tasks", ["tenant"])
    op.drop_index("ix_tasks_tenant_id", "tasks")
