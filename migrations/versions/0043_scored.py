"""Of a slice's busy time, that of passes without a gradient: the function `score`, which counted as `train`."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

SLICES_BEFORE = """
SELECT s.accelerator, s.epoch, s.executor, s.pool, s.function, s.reason, cardinality(s.tasks) AS tasks, s.from_tier, s.to_tier,
       s.ordered_at, s.awake_at, s.asked_at, s.ended_at, s.parked_at, s.ended, s.expected_s,
       s.switch_ms / 1000.0 AS switch_s, s.busy_ms / 1000.0 AS busy_s, s.idle_ms / 1000.0 AS idle_s,
       extract(epoch FROM s.ended_at - s.ordered_at) AS held_s
FROM slices s
"""
USE_BEFORE = """
SELECT h.hour, s.accelerator, s.pool, s.function, count(*) AS slices,
       sum(extract(epoch FROM greatest(least(t.woke, h.hour + interval '1 hour') - greatest(s.ordered_at, h.hour), '0'))) AS switch_s,
       sum(w.awake_s) AS awake_s, sum(w.awake_s * s.busy_ms / nullif(s.busy_ms + s.idle_ms, 0)) AS busy_s,
       sum(w.awake_s * s.idle_ms / nullif(s.busy_ms + s.idle_ms, 0)) AS idle_s
FROM slices s
CROSS JOIN LATERAL (SELECT coalesce(s.ended_at, greatest(now(), s.ordered_at)) AS until) u
CROSS JOIN LATERAL (SELECT coalesce(s.awake_at, u.until) AS woke) t
CROSS JOIN LATERAL generate_series(date_trunc('hour', s.ordered_at), u.until, interval '1 hour') AS h (hour)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM greatest(least(u.until, h.hour + interval '1 hour') - greatest(t.woke, h.hour), '0')) AS awake_s) w
GROUP BY h.hour, s.accelerator, s.pool, s.function
"""
SLICES = """
SELECT s.accelerator, s.epoch, s.executor, s.pool, s.function, s.reason, cardinality(s.tasks) AS tasks, s.from_tier, s.to_tier,
       s.ordered_at, s.awake_at, s.asked_at, s.ended_at, s.parked_at, s.ended, s.expected_s,
       s.switch_ms / 1000.0 AS switch_s, s.busy_ms / 1000.0 AS busy_s, s.idle_ms / 1000.0 AS idle_s,
       extract(epoch FROM s.ended_at - s.ordered_at) AS held_s, s.score_ms / 1000.0 AS score_s
FROM slices s
"""
USE = """
SELECT h.hour, s.accelerator, s.pool, f.function, sum(f.own) AS slices,
       sum(f.own * w.switch_s) AS switch_s, sum(w.awake_s * f.part) AS awake_s,
       sum(w.awake_s * f.ms / nullif(s.busy_ms + s.idle_ms, 0)) AS busy_s,
       sum(f.own * w.awake_s * s.idle_ms / nullif(s.busy_ms + s.idle_ms, 0)) AS idle_s
FROM slices s
CROSS JOIN LATERAL (
    SELECT s.function, 1 AS own, s.busy_ms - coalesce(s.score_ms, 0) AS ms,
           1 - coalesce(s.score_ms::numeric / nullif(s.busy_ms + s.idle_ms, 0), 0) AS part
    UNION ALL SELECT 'score', 0, s.score_ms, s.score_ms::numeric / (s.busy_ms + s.idle_ms) WHERE s.score_ms > 0) f
CROSS JOIN LATERAL (SELECT coalesce(s.ended_at, greatest(now(), s.ordered_at)) AS until) u
CROSS JOIN LATERAL (SELECT coalesce(s.awake_at, u.until) AS woke) t
CROSS JOIN LATERAL generate_series(date_trunc('hour', s.ordered_at), u.until, interval '1 hour') AS h (hour)
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM greatest(least(u.until, h.hour + interval '1 hour') - greatest(t.woke, h.hour), '0')) AS awake_s,
           extract(epoch FROM greatest(least(t.woke, h.hour + interval '1 hour') - greatest(s.ordered_at, h.hour), '0')) AS switch_s) w
GROUP BY h.hour, s.accelerator, s.pool, f.function
"""


def upgrade() -> None:
    op.add_column("slices", sa.Column("score_ms", sa.BigInteger))
    whole = "score_ms IS NULL OR coalesce(score_ms BETWEEN 0 AND busy_ms, false)"
    op.create_check_constraint(op.f("ck_slices_score_ms"), "slices", whole)
    op.execute(f"CREATE OR REPLACE VIEW accelerator_slices AS {SLICES}")
    op.execute(f"CREATE OR REPLACE VIEW accelerator_use AS {USE}")


def downgrade() -> None:
    op.execute(f"CREATE OR REPLACE VIEW accelerator_use AS {USE_BEFORE}")
    op.execute("DROP VIEW accelerator_slices")
    op.execute(f"CREATE VIEW accelerator_slices AS {SLICES_BEFORE}")
    op.drop_column("slices", "score_ms")
