"""Evaluations by protocol, with intervals; those that there are belong to the protocol `main`."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TASK_EVALUATIONS = """
SELECT e.task, t.tenant, e.version, e.state, e.reward, e.results -> 'pass_at' AS pass_at, (e.results ->> 'prompts')::int AS prompts,
       (e.results ->> 'failed_share')::float8 AS failed_share, (e.results ->> 'response_length')::float8 AS response_length,
       (e.results ->> 'truncated_share')::float8 AS truncated_share,
       e.planned_at, e.finished_at, extract(epoch FROM e.finished_at - e.planned_at) AS took_s{more}
FROM evaluations e JOIN tasks t ON t.id = e.task
"""
COLUMNS_ADDED = """,
       e.protocol, (e.results ->> 'standard_error')::float8 AS standard_error,
       e.lower_bound, (e.results #>> '{interval,1}')::float8 AS upper_bound,
       (e.results #>> '{gain,reward}')::float8 AS gain, (e.results #>> '{gain,standard_error}')::float8 AS gain_error,
       (e.results #>> '{gain,interval,0}')::float8 AS gain_lower_bound, (e.results #>> '{gain,interval,1}')::float8 AS gain_upper_bound"""
OTHER_PROTOCOLS = "e.protocol <> coalesce(t.spec #>> '{evaluation,protocol,0,name}', 'main')"


def upgrade() -> None:
    for table in ("evaluations", "evaluation_groups"):
        op.add_column(table, sa.Column("protocol", sa.Text(), server_default=sa.text("'main'"), nullable=False))
    op.add_column("evaluations", sa.Column("lower_bound", sa.Double(), nullable=True))
    _key("task", "version", "protocol")
    op.execute(f"CREATE OR REPLACE VIEW task_evaluations AS {TASK_EVALUATIONS.format(more=COLUMNS_ADDED)}")


def downgrade() -> None:
    """Of several protocols, the one that decides is kept; tasks lose the fields that are unknown before."""
    op.execute(
        f"DELETE FROM ledger l USING evaluation_groups e, tasks t "
        f"WHERE l.kind = 'evaluation' AND l.task = e.task AND l.number = e.number AND t.id = e.task AND {OTHER_PROTOCOLS}"
    )
    op.execute(
        f"DELETE FROM events v USING evaluations e, tasks t WHERE v.event = 'evaluation' AND v.task = e.task AND t.id = e.task "
        f"AND (v.data ->> 'version')::int = e.version AND v.data ->> 'protocol' = e.protocol AND {OTHER_PROTOCOLS}"
    )
    op.execute(f"DELETE FROM evaluations e USING tasks t WHERE t.id = e.task AND {OTHER_PROTOCOLS}")
    op.execute("UPDATE tasks SET spec = spec #- '{evaluation,protocol}' #- '{evaluation,decide_by}' #- '{stop,patience}'")
    op.execute("DROP VIEW task_evaluations")
    _key("task", "version")
    for table, column in (("evaluations", "lower_bound"), ("evaluations", "protocol"), ("evaluation_groups", "protocol")):
        op.drop_column(table, column)
    op.execute(f"CREATE VIEW task_evaluations AS {TASK_EVALUATIONS.format(more='')}")


def _key(*columns: str) -> None:
    """Make these columns the key of evaluations, which their groups refer to."""
    op.drop_constraint("fk_evaluation_groups_task", "evaluation_groups", type_="foreignkey")
    op.drop_constraint("pk_evaluations", "evaluations", type_="primary")
    op.create_primary_key("pk_evaluations", "evaluations", list(columns))
    op.drop_index("ix_evaluation_groups_version", table_name="evaluation_groups")
    op.create_index("ix_evaluation_groups_version", "evaluation_groups", list(columns), unique=False)
    op.create_foreign_key("fk_evaluation_groups_task", "evaluation_groups", "evaluations", list(columns), list(columns), ondelete="CASCADE")
