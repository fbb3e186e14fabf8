"""Rules about PostgreSQL alone: sentence → query whose rows are its violations (DESIGN, "rules that hold always").

Constraints of the schema are not repeated here.
"""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from common.messages.tenancy.billing import TOKEN_KINDS
from scheduler_svc.doctor.violation import Violation

MAX_ROWS = 20
"""Maximum violations reported per rule."""
ENDED_STATES = "('finished', 'cancelled', 'failed', 'rejected')"

RULES: dict[str, str] = {
    "every admitted group has its row, numbered from 0": """
        SELECT t.id AS task, t.admitted, count(g.number) AS groups, max(g.number) AS last
        FROM tasks t LEFT JOIN groups g ON g.task = t.id AND g.protocol IS NULL
        GROUP BY t.id HAVING count(g.number) <> t.admitted OR coalesce(max(g.number), -1) <> t.admitted - 1""",
    "every group has one trajectory for each member": """
        SELECT g.task, g.number AS "group", t.group_size, count(j.member) AS members
        FROM groups g JOIN tasks t ON t.id = g.task LEFT JOIN trajectories j ON j.task = g.task AND j."group" = g.number
        WHERE g.protocol IS NULL GROUP BY g.task, g.number, t.group_size
        HAVING count(j.member) <> t.group_size OR min(j.member) <> 0 OR max(j.member) <> t.group_size - 1""",
    "void groups are counted once": """
        SELECT t.id AS task, t.voided, count(g.number) AS void_groups
        FROM tasks t LEFT JOIN groups g ON g.task = t.id AND g.state = 'void'
        GROUP BY t.id HAVING count(g.number) <> t.voided""",
    "an ended task has no trajectory that is neither trained nor void": f"""
        SELECT j.task, j."group", j.member, j.state, t.state AS task_state
        FROM trajectories j JOIN tasks t ON t.id = j.task
        WHERE t.state IN {ENDED_STATES} AND j.state IN ('open', 'scored')""",
    "an ended task has no group that is neither trained nor void": f"""
        SELECT g.task, g.number AS "group", g.state, t.state AS task_state
        FROM groups g JOIN tasks t ON t.id = g.task
        WHERE t.state IN {ENDED_STATES} AND g.state IN ('open', 'ready', 'batched')""",
    "a trajectory's state agrees with its group's": """
        SELECT j.task, j."group", j.member, j.state, g.state AS group_state
        FROM trajectories j JOIN groups g ON g.task = j.task AND g.number = j."group"
        WHERE g.protocol IS NULL AND NOT CASE g.state WHEN 'open' THEN j.state IN ('open', 'scored') WHEN 'ready' THEN j.state = 'scored'
                                                    WHEN 'batched' THEN j.state = 'scored' ELSE j.state = g.state END""",
    "an open group waits for at least one member": """
        SELECT g.task, g.number AS "group" FROM groups g
        WHERE g.state = 'open' AND NOT EXISTS (
            SELECT FROM trajectories j WHERE j.task = g.task AND j."group" = g.number AND j.state = 'open')""",
    "an overdue group is void within a minute": """
        SELECT g.task, g.number AS "group", g.admitted_at, g.deadline_at, c.parked_ms FROM groups g JOIN tasks t ON t.id = g.task
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(p.parked_ms + coalesce(greatest(0, extract(epoch FROM now() - p.parked_since) * 1000), 0)), 0) AS parked_ms
            FROM pool_clocks p WHERE p.pool = t.pool) c
        WHERE g.state = 'open' AND g.deadline_at + make_interval(secs => c.parked_ms / 1000.0) < now() - interval '1 minute'
          AND g.admitted_at + make_interval(secs => (t.spec #>> '{limits,episode_timeout_s}')::float8)
              + make_interval(secs => (c.parked_ms - g.parked_ms) / 1000.0) < now() - interval '1 minute'""",
    "a task's version is the number of its trained steps": """
        SELECT t.id AS task, t.version, count(s.version) AS trained_steps
        FROM tasks t LEFT JOIN steps s ON s.task = t.id AND s.state = 'trained'
        GROUP BY t.id HAVING count(s.version) <> t.version""",
    "trained steps are contiguous from 0, and at most one more was sent": """
        SELECT s.task, s.version, s.state, t.version AS task_version FROM steps s JOIN tasks t ON t.id = s.task
        WHERE NOT CASE s.state WHEN 'trained' THEN s.version BETWEEN 0 AND t.version - 1 ELSE s.version = t.version END""",
    "a step of an ended task is trained or void, one of a live task is not void": f"""
        SELECT s.task, s.version, s.state, t.state AS task_state FROM steps s JOIN tasks t ON t.id = s.task
        WHERE s.state = CASE WHEN t.state IN {ENDED_STATES} THEN 'batched' ELSE 'void' END""",
    "a finished task trained every step, or says what stopped it": """
        SELECT id AS task, version, steps, reason FROM tasks WHERE state = 'finished' AND version <> steps AND reason NOT LIKE 'stop.%'""",
    "an evaluation is over when all of its groups are": """
        SELECT e.task, e.version, e.protocol, e.state, count(*) FILTER (WHERE g.state <> 'ended') AS left FROM evaluations e
        JOIN groups g ON g.task = e.task AND g.version = e.version AND g.protocol = e.protocol
        GROUP BY e.task, e.version, e.protocol, e.state HAVING (e.state = 'running') <> (count(*) FILTER (WHERE g.state <> 'ended') > 0)""",
    "an ended task has no running evaluation, and each finished evaluation has one event": f"""
        SELECT t.id AS task, t.state, count(e.version) FILTER (WHERE e.state = 'running') AS running,
               count(e.version) FILTER (WHERE e.state = 'finished') AS finished,
               (SELECT count(*) FROM events v WHERE v.task = t.id AND v.event = 'evaluation') AS events
        FROM tasks t JOIN evaluations e ON e.task = t.id GROUP BY t.id
        HAVING (t.state IN {ENDED_STATES} AND count(e.version) FILTER (WHERE e.state = 'running') > 0)
            OR count(e.version) FILTER (WHERE e.state = 'finished')
               <> (SELECT count(*) FROM events v WHERE v.task = t.id AND v.event = 'evaluation')""",
    "the ledger has what each evaluation consumed, and nothing else": """
        WITH spent AS (
            SELECT g.task, g.number, sum(m.prompt_tokens + m.sampled_tokens) AS tokens
            FROM groups g JOIN trajectories m ON m.task = g.task AND m."group" = g.number
            WHERE g.state = 'ended' GROUP BY g.task, g.number),
        booked AS (SELECT task, number, tokens FROM ledger WHERE kind = 'evaluation')
        SELECT coalesce(s.task, b.task) AS task, coalesce(s.number, b.number) AS "group",
               coalesce(s.tokens, 0) AS consumed, coalesce(b.tokens, 0) AS booked
        FROM spent s FULL JOIN booked b ON b.task = s.task AND b.number = s.number
        WHERE coalesce(s.tokens, 0) <> coalesce(b.tokens, 0)""",
    "a step has as many groups as its task says, in the step's own state": """
        SELECT s.task, s.version, s.state, count(g.number) AS groups, t.groups_per_step
        FROM steps s JOIN tasks t ON t.id = s.task LEFT JOIN groups g ON g.task = s.task AND g.step = s.version AND g.state = s.state
        GROUP BY s.task, s.version, s.state, t.groups_per_step HAVING count(g.number) <> t.groups_per_step""",
    "a trained or batched group belongs to an existing step": """
        SELECT g.task, g.number AS "group", g.state, g.step FROM groups g
        WHERE g.state IN ('batched', 'trained') AND NOT EXISTS (
            SELECT FROM steps s WHERE s.task = g.task AND s.version = g.step AND s.state = g.state)""",
    "no trained or waiting group is staler than its task allows": """
        SELECT g.task, g.number AS "group", g.state, g.version AS sampled_by, coalesce(g.step, t.version) AS trained_from, t.max_staleness
        FROM groups g JOIN tasks t ON t.id = g.task
        WHERE g.protocol IS NULL AND g.state <> 'void' AND coalesce(g.step, t.version) - g.version NOT BETWEEN 0 AND t.max_staleness""",
    "a scored message is one group's, and names each member once": """
        SELECT task, sequence, count(DISTINCT "group") AS groups FROM trajectories WHERE sequence IS NOT NULL
        GROUP BY task, sequence HAVING count(DISTINCT "group") > 1
        UNION ALL
        SELECT min(task), sequence, count(DISTINCT task) FROM trajectories WHERE sequence IS NOT NULL
        GROUP BY sequence HAVING count(DISTINCT task) > 1""",
    "a step's numbers are those of its trajectories": """
        SELECT s.task, s.version, s.reward, m.reward AS of_members, s.sampled_tokens, m.tokens, s.staleness_max, m.staleness
        FROM steps s JOIN LATERAL (
            SELECT avg(j.reward) AS reward, sum(j.sampled_tokens) AS tokens, s.version - min(g.version) AS staleness
            FROM groups g JOIN trajectories j ON j.task = g.task AND j."group" = g.number
            WHERE g.task = s.task AND g.step = s.version) m ON true
        WHERE abs(s.reward - m.reward) > 1e-9 * (1 + abs(m.reward)) OR s.sampled_tokens <> m.tokens OR s.staleness_max <> m.staleness""",
    "the ledger has what each settled group consumed, and nothing else": """
        WITH spent AS (
            SELECT g.task, g.number, k.kind, sum(CASE k.kind WHEN 'prompt' THEN j.prompt_tokens ELSE j.sampled_tokens END) AS tokens
            FROM groups g JOIN trajectories j ON j.task = g.task AND j."group" = g.number
            CROSS JOIN (VALUES ('prompt'), ('sampled')) k (kind)
            WHERE g.protocol IS NULL AND g.state <> 'open' GROUP BY g.task, g.number, k.kind),
        booked AS (SELECT task, number, kind, tokens FROM ledger WHERE kind IN ('prompt', 'sampled'))
        SELECT coalesce(s.task, b.task) AS task, coalesce(s.number, b.number) AS "group", coalesce(s.kind, b.kind) AS kind,
               coalesce(s.tokens, 0) AS consumed, coalesce(b.tokens, 0) AS booked
        FROM spent s FULL JOIN booked b ON b.task = s.task AND b.number = s.number AND b.kind = s.kind
        WHERE coalesce(s.tokens, 0) <> coalesce(b.tokens, 0)""",
    "the ledger has each trained step once, and nothing else": """
        SELECT coalesce(s.task, l.task) AS task, coalesce(s.version + 1, l.number) AS version, s.state, l.tokens AS booked
        FROM (SELECT * FROM steps WHERE state = 'trained') s
        FULL JOIN (SELECT * FROM ledger WHERE kind = 'trained') l ON l.task = s.task AND l.number = s.version + 1
        WHERE s.task IS NULL OR l.task IS NULL""",
    "a task's totals are what the ledger has of it": f"""
        SELECT t.id AS task, t.booked_tokens, t.sampled_tokens, coalesce(sum(l.tokens), 0) AS booked,
               coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0) AS sampled
        FROM tasks t LEFT JOIN ledger l ON l.task = t.id AND l.kind IN {TOKEN_KINDS} GROUP BY t.id
        HAVING t.booked_tokens <> coalesce(sum(l.tokens), 0)
            OR t.sampled_tokens <> coalesce(sum(l.tokens) FILTER (WHERE l.kind = 'sampled'), 0)""",
    "a task has paid the amount on its invoice": f"""
        SELECT t.id AS task, t.paid_tokens, t.paid_money, coalesce(sum(i.quantity) FILTER (WHERE i.is_tokens), 0) AS tokens,
               coalesce(sum(i.money), 0) AS money
        FROM tasks t LEFT JOIN (SELECT *, kind IN {TOKEN_KINDS} AS is_tokens FROM task_invoice) i
             ON i.task = t.id GROUP BY t.id
        HAVING t.paid_tokens <> coalesce(sum(i.quantity) FILTER (WHERE i.is_tokens), 0) OR t.paid_money <> coalesce(sum(i.money), 0)""",
    "served tokens are on the bill as they were reported, at the prices of their time": """
        WITH reported AS (
            SELECT r.tenant, (r.at AT TIME ZONE 'UTC')::date AS day, r.pool, coalesce(r.task, '') AS task, k.kind, sum(k.tokens) AS tokens,
                   sum(k.tokens * coalesce(unit_price(k.kind, r.pool, r.at), 0)) AS money
            FROM served_requests r
            CROSS JOIN LATERAL (VALUES ('served_prompt', r.prompt_tokens), ('served_sampled', r.sampled_tokens)) k (kind, tokens)
            WHERE k.tokens > 0 GROUP BY 1, 2, 3, 4, 5),
        kept AS (SELECT DISTINCT tenant, (at AT TIME ZONE 'UTC')::date AS day FROM served_requests),
        booked AS (SELECT u.* FROM served_usage u JOIN kept k ON k.tenant = u.tenant AND k.day = u.day)
        SELECT coalesce(r.tenant, b.tenant) AS tenant, coalesce(r.day, b.day) AS day, coalesce(r.pool, b.pool) AS pool,
               coalesce(r.task, b.task) AS task, coalesce(r.kind, b.kind) AS kind, r.tokens, b.quantity, r.money, b.money AS booked_money
        FROM reported r FULL JOIN booked b
             ON b.tenant = r.tenant AND b.day = r.day AND b.pool = r.pool AND b.task = r.task AND b.kind = r.kind
        WHERE (r.tokens IS DISTINCT FROM b.quantity OR r.money <> b.money)
          AND NOT EXISTS (SELECT FROM tenants d WHERE d.id = coalesce(r.tenant, b.tenant) AND d.deleted_at IS NOT NULL)""",
    "every ledger entry names its task's tenant": """
        SELECT l.task, l.kind, l.number, l.tenant, t.tenant AS owner
        FROM ledger l JOIN tasks t ON t.id = l.task WHERE l.tenant <> t.tenant""",
    "every stored blob belongs to a task of a tenant": """
        SELECT b.task, b.name FROM stored_blobs b
        WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = b.task) AND NOT EXISTS (SELECT FROM deleted_tasks d WHERE d.id = b.task)""",
    "an event about a task is its tenant's, but for refusals": """
        SELECT e.task, e.event, e.tenant, t.tenant AS owner FROM events e JOIN tasks t ON t.id = e.task
        WHERE e.tenant <> t.tenant AND e.event <> 'rejected'""",
    "a deleted tenant has neither tasks nor keys": """
        SELECT d.id AS tenant, x.task, x.key
        FROM (SELECT tenant, id AS task, '' AS key FROM tasks UNION ALL SELECT tenant, '', key FROM keys) x
        JOIN tenants d ON d.id = x.tenant WHERE d.deleted_at IS NOT NULL""",
    "every accepted action is audited under an existing tenant": """
        SELECT a.id, a.verb, a.target AS task, a.tenant FROM audit a
        WHERE a.outcome = 'accepted' AND a.verb <> 'preview' AND a.tenant <> '_all'
          AND NOT EXISTS (SELECT FROM tenants t WHERE t.id = a.tenant)""",
    "a task's adapter and checkpoint are its last trained step's": """
        SELECT t.id AS task, t.version, t.adapter #>> '{blob,name}' AS adapter, s.adapter #>> '{blob,name}' AS of_step
        FROM tasks t LEFT JOIN steps s ON s.task = t.id AND s.version = t.version - 1 AND s.state = 'trained'
        WHERE t.adapter IS DISTINCT FROM s.adapter OR t.checkpoint IS DISTINCT FROM s.checkpoint""",
    "a trained step's adapter is its own task's and version's": """
        SELECT task, version, adapter ->> 'task' AS adapter_task, adapter ->> 'version' AS adapter_version FROM steps
        WHERE state = 'trained' AND (adapter ->> 'task' <> task OR (adapter ->> 'version')::int <> version + 1)""",
    "each step, and each task's end, has one event": f"""
        SELECT t.id AS task, t.state, t.version, count(e.id) FILTER (WHERE e.event = 'step') AS step_events,
               count(e.id) FILTER (WHERE e.event = t.state) AS end_events
        FROM tasks t LEFT JOIN events e ON e.task = t.id AND e.tenant = t.tenant
        GROUP BY t.id
        HAVING count(e.id) FILTER (WHERE e.event = 'step') <> t.version
            OR (t.state IN ('finished', 'cancelled', 'failed') AND count(e.id) FILTER (WHERE e.event = t.state) <> 1)
            OR (t.state NOT IN {ENDED_STATES} AND count(e.id) FILTER (WHERE e.event IN ('finished', 'cancelled', 'failed')) > 0)""",
    "no message waits in the outbox for more than a minute": """
        SELECT id, subject, created_at FROM outbox WHERE created_at < now() - interval '1 minute'""",
    "each executor fits on its accelerator: if not, raise memory_gib, or lower kv_cache_gib (GPU: gpu_memory_share) or train_tokens": """
        SELECT e.accelerator, e.id AS executor, e.device_bytes AS needed_bytes,
               floor((a.spec ->> 'memory_gib')::numeric * 2 ^ 30)::bigint AS has_bytes
        FROM executors e JOIN accelerators a ON a.id = e.accelerator
        WHERE NOT e.tier = 'off' AND e.device_bytes > floor((a.spec ->> 'memory_gib')::numeric * 2 ^ 30)""",
    "slices of an accelerator follow each other: each has a higher epoch than those that began before, and begins when they are over": """
        SELECT s.accelerator, s.epoch, s.executor, n.epoch AS next, s.ended, s.ended_at, n.ordered_at FROM slices s
        JOIN LATERAL (SELECT * FROM slices m WHERE m.accelerator = s.accelerator AND m.epoch > s.epoch ORDER BY m.epoch LIMIT 1) n ON true
        WHERE s.ended_at IS NULL OR n.ordered_at < s.ended_at OR (s.ended = 'switched' AND n.ordered_at > s.ended_at)
        UNION ALL
        SELECT s.accelerator, s.epoch, s.executor, a.epoch, s.ended, s.ended_at, NULL FROM slices s
        JOIN accelerators a ON a.id = s.accelerator
        WHERE s.epoch > a.epoch OR (s.ended = 'switched' AND NOT EXISTS (
            SELECT FROM slices m WHERE m.accelerator = s.accelerator AND m.epoch > s.epoch))""",
    "each slice is booked whole, once it is": """
        SELECT s.accelerator, s.epoch, s.executor, s.booked_at, extract(epoch FROM s.ended_at - s.ordered_at) * 1000 AS held_ms, h.ms
        FROM slices s JOIN LATERAL (
            SELECT sum(ms) AS ms FROM slice_shares h WHERE h.accelerator = s.accelerator AND h.epoch = s.epoch) h ON true
        WHERE coalesce(h.ms, 0) <> CASE WHEN s.booked_at IS NULL THEN 0 ELSE extract(epoch FROM s.ended_at - s.ordered_at) * 1000 END""",
    "the ledger has each task's share of each slice, and nothing else": """
        SELECT coalesce(h.task, l.task) AS task, coalesce(h.number, l.number) AS slice, h.tenant, h.ms, l.tenant AS payer, l.tokens
        FROM (SELECT h.task, s.number, h.tenant, h.ms FROM slice_shares h
              JOIN slices s ON s.accelerator = h.accelerator AND s.epoch = h.epoch JOIN tasks t ON t.id = h.task) h
        FULL JOIN (SELECT * FROM ledger l WHERE l.kind = 'accelerator' AND (
            EXISTS (SELECT FROM slices s WHERE s.number = l.number) OR l.number > (
                SELECT coalesce(max(k.first), 0) FROM (SELECT min(number) AS first FROM slices GROUP BY accelerator) k))
        ) l ON l.task = h.task AND l.number = h.number
        WHERE h.ms IS DISTINCT FROM l.tokens OR h.tenant <> l.tenant""",
    "the clock of a pool goes while one of its samplers is awake": """
        SELECT c.pool, c.parked_since, s.accelerator, s.epoch FROM pool_clocks c
        JOIN slices s ON s.pool = c.pool AND s.executor = 'rollout-' || c.pool
        WHERE s.ended_at IS NULL AND s.awake_at IS NOT NULL AND c.parked_since IS NOT NULL""",
}


async def examine_database(connection: AsyncConnection) -> list[Violation]:
    """Violations of this module's rules, all seen in the connection's transaction."""
    found: list[Violation] = []
    for rule, query in RULES.items():
        rows = (await connection.execute(text(f"SELECT * FROM ({query}) AS broken LIMIT {MAX_ROWS}"))).mappings()
        found += [Violation(rule, " ".join(f"{name}={value}" for name, value in row.items())) for row in rows]
    return found
