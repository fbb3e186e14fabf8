"""Since when work waits for an executor to wake, as it reports: before, that was told from groups, which may all be with environments."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

BEFORE = """
SELECT e.pool, e.accelerator, e.id AS executor, e.service, e.state, e.tier, e.held, open.epoch IS NOT NULL AS is_holder,
       coalesce(open.awake_at, open.ordered_at, e.answered_at) AS since,
       CASE WHEN e.state <> 'awake' THEN
           CASE e.service WHEN 'trainer' THEN work.batched_at WHEN 'rollout' THEN
               CASE WHEN work.admitted_at IS NOT NULL THEN greatest(work.admitted_at, c.parked_since) END END
       END AS waiting_since,
       costs.p50_s AS wake_s, recent.switch_share, e.device_bytes, e.host_bytes, e.fault, e.retry_at,
       (coalesce(c.parked_ms, 0) + coalesce(greatest(0, extract(epoch FROM now() - c.parked_since) * 1000), 0)) / 1000.0 AS parked_s
FROM executors e
LEFT JOIN pool_clocks c ON c.pool = e.pool
LEFT JOIN slices open ON open.accelerator = e.accelerator AND open.executor = e.id AND open.ended_at IS NULL
LEFT JOIN move_costs costs
    ON costs.accelerator = e.accelerator AND costs.executor = e.id AND costs.from_tier = e.tier AND costs.to_tier = 'device'
LEFT JOIN LATERAL (
    SELECT sum(s.switch_ms) / nullif(sum(s.switch_ms + s.busy_ms + s.idle_ms), 0) AS switch_share
    FROM slices s WHERE s.accelerator = e.accelerator AND s.executor = e.id AND s.ended_at > now() - interval '1 hour') recent ON true
LEFT JOIN LATERAL (
    SELECT min(g.admitted_at) FILTER (WHERE g.state = 'open') AS admitted_at,
           (SELECT min(b.batched_at) FROM steps b JOIN tasks t ON t.id = b.task WHERE t.pool = e.pool AND b.state = 'batched') AS batched_at
    FROM groups g JOIN tasks t ON t.id = g.task WHERE t.pool = e.pool AND g.state IN ('open', 'ready', 'batched')) work ON true
"""
POOL_STATUS = """
SELECT e.pool, e.accelerator, e.id AS executor, e.service, e.state, e.tier, e.held, open.epoch IS NOT NULL AS is_holder,
       coalesce(open.awake_at, open.ordered_at, e.answered_at) AS since,
       CASE WHEN e.state <> 'awake' THEN e.ready_since END AS waiting_since,
       costs.p50_s AS wake_s, recent.switch_share, e.device_bytes, e.host_bytes, e.fault, e.retry_at,
       (coalesce(c.parked_ms, 0) + coalesce(greatest(0, extract(epoch FROM now() - c.parked_since) * 1000), 0)) / 1000.0 AS parked_s
FROM executors e
LEFT JOIN pool_clocks c ON c.pool = e.pool
LEFT JOIN slices open ON open.accelerator = e.accelerator AND open.executor = e.id AND open.ended_at IS NULL
LEFT JOIN move_costs costs
    ON costs.accelerator = e.accelerator AND costs.executor = e.id AND costs.from_tier = e.tier AND costs.to_tier = 'device'
LEFT JOIN LATERAL (
    SELECT sum(s.switch_ms) / nullif(sum(s.switch_ms + s.busy_ms + s.idle_ms), 0) AS switch_share
    FROM slices s WHERE s.accelerator = e.accelerator AND s.executor = e.id AND s.ended_at > now() - interval '1 hour') recent ON true
"""


def upgrade() -> None:
    op.add_column("executors", sa.Column("ready_since", sa.DateTime(timezone=True)))
    op.execute(f"CREATE OR REPLACE VIEW pool_status AS {POOL_STATUS}")


def downgrade() -> None:
    op.execute(f"CREATE OR REPLACE VIEW pool_status AS {BEFORE}")
    op.drop_column("executors", "ready_since")
