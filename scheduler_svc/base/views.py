"""Public views of the database, for users of `psql`; each is transactionally consistent.

A change here needs a new migration that replaces the view.
"""

TASK_STATUS = """
SELECT t.id AS task, t.tenant, t.name, t.pool, t.state, t.reason, t.version, t.steps,
       last.reward AS last_reward,
       live.open_groups, live.ready_groups, live.batched_groups, t.voided AS void_groups,
       spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens,
       t.submitted_at, t.accepted_at, t.ended_at,
       latest.failed_groups, latest.failed_groups::float8 / nullif(latest.ended_groups, 0) AS failed_share,
       (SELECT count(*) FROM dead_letters d WHERE d.task = t.id) AS dead_letters,
       CASE WHEN t.over_budget THEN 'budget'
            WHEN t.state = 'paused' THEN 'paused'
            WHEN t.state = 'submitted' THEN 'check'
            WHEN live.batched_groups > 0 THEN 'trainer' END AS waits_for
FROM tasks t
LEFT JOIN LATERAL (SELECT s.reward FROM steps s WHERE s.task = t.id AND s.state = 'trained' ORDER BY s.version DESC LIMIT 1) last ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.state = 'open') AS open_groups,
           count(*) FILTER (WHERE g.state = 'ready') AS ready_groups,
           count(*) FILTER (WHERE g.state = 'batched') AS batched_groups
    FROM groups g WHERE g.task = t.id AND g.protocol IS NULL AND g.state IN ('open', 'ready', 'batched')) live ON true
LEFT JOIN LATERAL (
    SELECT coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'prompt'), 0) AS prompt_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled_tokens,
           coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'trained'), 0) AS trained_tokens
    FROM ledger l WHERE l.task = t.id) spent ON true
LEFT JOIN LATERAL (
    SELECT count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline')) AS failed_groups,
           count(*) FILTER (WHERE g.void_reason IN ('failed', 'deadline') OR g.state IN ('ready', 'batched', 'trained')) AS ended_groups
    FROM (SELECT state, void_reason FROM groups WHERE task = t.id AND number < 1000000000 ORDER BY number DESC LIMIT 100) g) latest ON true
"""

TASK_STALENESS = """
SELECT t.id AS task, t.tenant, t.version, t.max_staleness,
       trained.steps AS trained_steps, trained.mean AS trained_mean, trained.max AS trained_max,
       coalesce(t.version - live.oldest, 0) AS live_max
FROM tasks t
LEFT JOIN LATERAL (
    SELECT count(*) AS steps, avg(s.staleness_mean) AS mean, max(s.staleness_max) AS max
    FROM steps s WHERE s.task = t.id AND s.state = 'trained') trained ON true
LEFT JOIN LATERAL (
    SELECT min(g.version) AS oldest FROM groups g WHERE g.task = t.id AND g.protocol IS NULL AND g.state IN ('open', 'ready')) live ON true
"""

TASK_TIMELINE = """
SELECT s.task, t.tenant, s.version, s.state, s.reward, s.staleness_max,
       s.first_admitted_at, s.first_scored_at, s.last_scored_at, s.batched_at, s.started_at, s.finished_at, s.trained_at,
       extract(epoch FROM s.last_scored_at - s.first_admitted_at) AS rollout_s,
       extract(epoch FROM s.batched_at - s.last_scored_at) AS wait_for_batch_s,
       extract(epoch FROM s.started_at - s.batched_at) AS wait_for_trainer_s,
       extract(epoch FROM s.finished_at - s.started_at) AS train_s,
       extract(epoch FROM s.trained_at - s.finished_at) AS publish_s,
       (s.parked_ms - s.first_parked_ms) / 1000.0 AS parked_s
FROM steps s JOIN tasks t ON t.id = s.task
"""

TENANT_USAGE = """
SELECT n.id AS tenant, n.weight,
       coalesce(l.prompt, 0) + coalesce(d.prompt, 0) AS prompt_tokens,
       coalesce(l.sampled, 0) + coalesce(d.sampled, 0) AS sampled_tokens,
       coalesce(l.trained, 0) + coalesce(d.trained, 0) AS trained_tokens,
       (SELECT count(*) FROM tasks t WHERE t.tenant = n.id AND t.state IN ('submitted', 'running', 'paused')) AS live_tasks,
       coalesce(l.evaluation, 0) + coalesce(d.evaluation, 0) AS evaluation_tokens,
       coalesce(l.env_ms, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind IN ('env_ms', 'void_env_ms')), 0) AS env_ms,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_prompt'), 0)
           AS served_prompt_tokens,
       coalesce((SELECT sum(s.quantity) FROM served_usage s WHERE s.tenant = n.id AND s.kind = 'served_sampled'), 0)
           AS served_sampled_tokens,
       (coalesce(l.accelerator, 0) + coalesce((SELECT sum(u.quantity) FROM deleted_usage u
           WHERE u.tenant = n.id AND u.kind = 'accelerator'), 0)) / 1000.0 AS accelerator_s
FROM tenants n
LEFT JOIN (SELECT tenant, sum(tokens) FILTER (WHERE kind = 'prompt') AS prompt, sum(tokens) FILTER (WHERE kind = 'sampled') AS sampled,
                  sum(tokens) FILTER (WHERE kind = 'trained') AS trained, sum(tokens) FILTER (WHERE kind = 'evaluation') AS evaluation,
                  sum(tokens) FILTER (WHERE kind = 'env_ms') AS env_ms, sum(tokens) FILTER (WHERE kind = 'accelerator') AS accelerator
           FROM ledger GROUP BY tenant) l ON l.tenant = n.id
LEFT JOIN (SELECT tenant, sum(prompt_tokens) AS prompt, sum(sampled_tokens) AS sampled, sum(trained_tokens) AS trained,
                  sum(evaluation_tokens) AS evaluation
           FROM deleted_tasks GROUP BY tenant) d ON d.tenant = n.id
"""

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

TASK_EVALUATIONS = """
SELECT e.task, t.tenant, e.version, e.state, e.reward, e.results -> 'pass_at' AS pass_at, (e.results ->> 'prompts')::int AS prompts,
       (e.results ->> 'failed_share')::float8 AS failed_share, (e.results ->> 'response_length')::float8 AS response_length,
       (e.results ->> 'truncated_share')::float8 AS truncated_share,
       e.planned_at, e.finished_at, extract(epoch FROM e.finished_at - e.planned_at) AS took_s,
       e.protocol, (e.results ->> 'standard_error')::float8 AS standard_error,
       e.lower_bound, (e.results #>> '{interval,1}')::float8 AS upper_bound,
       (e.results #>> '{gain,reward}')::float8 AS gain, (e.results #>> '{gain,standard_error}')::float8 AS gain_error,
       (e.results #>> '{gain,interval,0}')::float8 AS gain_lower_bound, (e.results #>> '{gain,interval,1}')::float8 AS gain_upper_bound
FROM evaluations e JOIN tasks t ON t.id = e.task
"""

TASK_INVOICE = """
SELECT l.task, t.tenant, (l.at AT TIME ZONE 'UTC')::date AS day, t.pool,
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

TENANT_INVOICE = """
SELECT tenant, day, pool, kind, sum(quantity) AS quantity, sum(money) AS money
FROM (SELECT tenant, day, pool, kind, quantity, money FROM task_invoice
      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM deleted_usage
      UNION ALL SELECT tenant, day, '', 'stored_byte_hours', quantity, money FROM package_usage
      UNION ALL SELECT tenant, day, pool, kind, quantity, money FROM served_usage) used
GROUP BY tenant, day, pool, kind
"""

STAGE_HEALTH = """
SELECT r.service AS stage, r.id AS replica, r.pool, r.seen_at > now() - interval '15 seconds' AS alive, r.seen_at,
       r.report -> 'busy' AS busy, (r.report ->> 'sequences')::int AS sequences, (r.report ->> 'kv_tokens')::int AS kv_tokens
FROM replicas r
"""

ACCELERATOR_SLICES = """
SELECT s.accelerator, s.epoch, s.executor, s.pool, s.function, s.reason, cardinality(s.tasks) AS tasks, s.from_tier, s.to_tier,
       s.ordered_at, s.awake_at, s.asked_at, s.ended_at, s.parked_at, s.ended, s.expected_s,
       s.switch_ms / 1000.0 AS switch_s, s.busy_ms / 1000.0 AS busy_s, s.idle_ms / 1000.0 AS idle_s,
       extract(epoch FROM s.ended_at - s.ordered_at) AS held_s, s.score_ms / 1000.0 AS score_s
FROM slices s
"""

ACCELERATOR_USE = """
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

MOVE_COSTS = """
SELECT accelerator, executor, from_tier, to_tier, count(*) AS n,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50_s, percentile_cont(0.9) WITHIN GROUP (ORDER BY seconds) AS p90_s,
       sum(bytes) / nullif(sum(seconds), 0) AS bytes_per_s, max(at) AS latest_at
FROM (SELECT *, row_number() OVER (PARTITION BY accelerator, executor, from_tier, to_tier ORDER BY id DESC) AS place FROM moves) newest
WHERE place <= 100
GROUP BY accelerator, executor, from_tier, to_tier
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

TASK_HOMES = """
SELECT t.id AS task, t.tenant, t.pool, h.service, h.home ->> 'replica' AS replica, (h.home ->> 'version')::int AS from_version,
       h.home ->> 'before' AS before, to_timestamp((h.home ->> 'since_s')::float8) AS since
FROM tasks t CROSS JOIN LATERAL jsonb_each(t.homes) AS h (service, home)
WHERE t.ended_at IS NULL
"""

VIEWS = {
    "task_status": TASK_STATUS,
    "task_staleness": TASK_STALENESS,
    "task_timeline": TASK_TIMELINE,
    "task_evaluations": TASK_EVALUATIONS,
    "task_storage": TASK_STORAGE,
    "tenant_usage": TENANT_USAGE,
    "task_invoice": TASK_INVOICE,
    "tenant_invoice": TENANT_INVOICE,
    "stage_health": STAGE_HEALTH,
    "accelerator_slices": ACCELERATOR_SLICES,
    "accelerator_use": ACCELERATOR_USE,
    "move_costs": MOVE_COSTS,
    "pool_status": POOL_STATUS,
    "task_homes": TASK_HOMES,
}
