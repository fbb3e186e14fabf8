"""An accelerator that two pools share, in the tables."""

from scheduler_svc.base.database import Database
from tests.support.scheduler.stages import POOLS
from tests.support.scheduler.statements import execute

SHARED = {"tiny": POOLS["tiny"].model_copy(update={"on": "a"}), "other": POOLS["tiny"].model_copy(update={"on": "a"})}
ROWS = """
INSERT INTO tenants (id) VALUES ('acme'), ('globex');
INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, priority, steps, group_size, groups_per_step, max_staleness,
    trajectory_tokens, version, admitted) SELECT '', id, tenant, id, pool, '{}', 'running', 0, 9, 1, 1, 1, 9, 1, 2
    FROM (VALUES ('x', 'acme', 'tiny'), ('y', 'globex', 'other')) t (id, tenant, pool);
INSERT INTO accelerators (id, spec) VALUES ('a', '{}');
INSERT INTO executors (accelerator, id, pool, service, state, tier, device_bytes, host_bytes, answered_at) VALUES
    ('a', 'rollout-tiny', 'tiny', 'rollout', 'awake', 'device', 100, 90, now()),
    ('a', 'trainer-tiny', 'tiny', 'trainer', 'parked', 'host', 1, 1, now()),
    ('a', 'rollout-other', 'other', 'rollout', 'parked', 'host', 8589934592, 1, now()),
    ('a', 'trainer-other', 'other', 'trainer', 'faulty', 'disk', 1, 1, now());
UPDATE executors SET ready_since = now() - interval '30 seconds' WHERE id IN ('rollout-other', 'rollout-tiny');
UPDATE executors SET faults = 1, fault = 'no memory in /srv/secret', retry_at = now() WHERE id = 'trainer-other';
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, to_tier, ordered_at, awake_at,
    ended_at, ended, booked_at, switch_ms, busy_ms, idle_ms)
    SELECT 'a', n, 'rollout-' || pool, pool, 'generate', 'ratio', ARRAY[task], 1, 'host', 'host', began, began + interval '1 second',
           began + interval '5 seconds', 'switched', now(), 1000, 3000, 1000
    FROM (VALUES (1, 'tiny', 'x'), (2, 'other', 'y')) v (n, pool, task),
         LATERAL (SELECT date_trunc('hour', now()) - interval '2 seconds' - (2 - n) * interval '5 seconds' AS began) b;
INSERT INTO slice_shares (accelerator, epoch, task, tenant, ms) VALUES
    ('a', 1, 'x', 'acme', 4000), ('a', 1, 'y', 'globex', 1000), ('a', 2, 'y', 'globex', 5000);
INSERT INTO slices (accelerator, epoch, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at, awake_at)
    VALUES ('a', 3, 'rollout-tiny', 'tiny', 'generate', 'ratio', ARRAY['x'], 1, 'host', now() - interval '3 seconds', now());
INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES
    ('acme', 'x', 'accelerator', 1, 4000), ('globex', 'y', 'accelerator', 1, 1000), ('globex', 'y', 'accelerator', 2, 5000);
INSERT INTO moves (accelerator, executor, epoch, from_tier, to_tier, bytes, seconds)
    SELECT 'a', 'trainer-tiny', n, 'host', 'device', 50, CASE WHEN n > 100 THEN 99 ELSE n / 100.0 END FROM generate_series(200, 1, -1) n;
INSERT INTO pool_clocks (pool, parked_ms, parked_since) VALUES ('tiny', 7000, NULL), ('other', 1000, now() - interval '60 seconds');
INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at, admitted_at, step) VALUES
    (2, 'x', 0, 0, 'trained', 0, 0, 0, now(), now() - interval '90 seconds', 0), (2, 'y', 0, 0, 'trained', 0, 0, 0, now(), now(), 0),
    (2, 'y', 1, 1, 'open', 1, 0, 0, now() + interval '1 hour', now() - interval '30 seconds', NULL);
INSERT INTO trajectories (task, "group", member, state, sequence, reward, scored_at, env_ms, away_ms, turns)
    VALUES ('x', 0, 0, 'trained', 1, 1, now(), 10, 20000, 2), ('y', 0, 0, 'trained', 2, 1, now(), 1500, 0, 0);
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, first_admitted_at, first_scored_at,
    last_scored_at, started_at, finished_at, trained_at, adapter, checkpoint, first_parked_ms, parked_ms)
    SELECT id, 0, 'trained', 1, 0, 0, 1, s.began, s.began, s.began + interval '60 seconds', s.began + interval '61 seconds',
           s.began + interval '63 seconds', now(), '{}', '{}', 1000, 6500
    FROM (VALUES ('x', interval '2 hours'), ('y', interval '2 minutes')) t (id, ago),
         LATERAL (SELECT date_trunc('hour', now()) + interval '1 minute' - ago AS began) s
"""


async def fill(database: Database) -> None:
    await execute(database, *ROWS.split(";\n"))
