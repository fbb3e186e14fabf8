"""Violations of each rule about PostgreSQL alone: statements that a test undoes, in the finished world."""

from tests.scheduler.doctor import slice_breakages

STATES = ("finished", "cancelled", "failed", "rejected")
"""States of tasks that have ended."""
GROUP = "INSERT INTO groups (size, task, number, version, state, row, seed, charged_tokens, deadline_at, void_reason, step) VALUES"
MEMBER = 'INSERT INTO trajectories (task, "group", member, state) VALUES'
EVENT = "INSERT INTO events (number, tenant, task, event, data) SELECT 1000 + count(*), {}, '{{}}' FROM events"
LEDGER = "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES"
REQUEST = """INSERT INTO served_requests
    (request, tenant, pool, task, version, attempt, cached_tokens, prompt_tokens, sampled_tokens, at) VALUES"""
USAGE = "INSERT INTO served_usage (tenant, day, pool, task, kind, quantity, money) VALUES"
TODAY = "(now() AT TIME ZONE 'UTC')::date"
ONE, BOTH = "('r', 'acme', 'tiny', 'a', 1, 0, 0, 5, 0, now())", "('r', 'acme', 'tiny', 'a', 1, 0, 0, 5, 3, now())"
ANOTHER, BASE = BOTH.replace("'r'", "'s'"), "('r', 'acme', 'tiny', NULL, NULL, 0, 0, 5, 0, now())"

EARLIER = "('s', 'acme', 'tiny', 'a', 1, 0, 0, 6, 0, now() - interval '1 day')"


def served(requests: str, *usage: str) -> str:
    """A statement that reports requests, and books tokens for them."""
    return f"WITH reported AS ({REQUEST} {requests}) {USAGE} {', '.join(usage)}"


def booked(
    tenant: str = "acme", day: str = TODAY, pool: str = "tiny", task: str = "a", kind: str = "prompt", tokens: int = 5, money: int = 0
) -> str:
    return f"('{tenant}', {day}, '{pool}', '{task}', 'served_{kind}', {tokens}, {money})"


WITHOUT_LAST = "WITH gone AS (DELETE FROM groups WHERE task = 'a' AND number = 5)"
FIRST_EVALUATED = "(SELECT min(number) FROM groups WHERE task = 'a' AND protocol IS NOT NULL)"
RUNNING_EVALUATION = """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3),
    unreported AS (DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 3)"""

OVERDUE = """WITH parked AS (INSERT INTO pool_clocks (pool, parked_ms) VALUES ('{pool}', 10000000000))
    UPDATE groups SET deadline_at = now() - interval '1 hour', admitted_at = now() - interval '2 days' WHERE state = 'open'"""

VIOLATIONS: dict[str, list[str]] = {
    "served tokens are on the bill as they were reported, at the prices of their time": [
        f"{REQUEST} {ONE}",
        f"{REQUEST} {BASE}",
        f"{REQUEST} ('r', 'acme', 'tiny', 'a', 1, 0, 0, 0, 1, now())",
        *(served(ONE, booked(tokens=tokens)) for tokens in (4, 6)),
        *(served(ONE, booked(money=money)) for money in (-1, 1)),
        served(BOTH, booked()),
        served(BOTH, booked(kind="sampled", tokens=3)),
        served(BOTH, booked(tokens=3), booked(kind="sampled")),
        served(ONE, booked(), booked(kind="sampled", tokens=1)),
        served(ONE, booked(), booked(pool="other")),
        served(ONE, booked(), booked(task="")),
        served(ONE, booked(pool="other")),
        served(ONE, booked(task="failed")),
        served(ONE, booked(task="")),
        served(BASE, booked()),
        served(ONE, booked(tenant="other")),
        served(ONE, booked(day=f"{TODAY} - 1")),
    ],
    "every admitted group has its row, numbered from 0": [
        "DELETE FROM groups WHERE task = 'a' AND number = 5",
        "DELETE FROM groups WHERE task = 'a' AND number = 0",
        "DELETE FROM groups WHERE task = 'a'",
        "UPDATE tasks SET admitted = admitted - 1 WHERE id = 'a'",
        f"{GROUP} (2, 'a', -1, 0, 'void', 0, 0, 0, now(), 'stale', NULL)",
        *(f"{WITHOUT_LAST} {GROUP} (2, 'a', {number}, 0, 'void', 0, 0, 0, now(), 'stale', NULL)" for number in (-1, 7)),
    ],
    "every group has one trajectory for each member": [
        "DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0",
        *(f"DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0 AND member = {member}" for member in (0, 1)),
        *(f"{MEMBER} ('a', 0, {member}, 'open')" for member in (-1, 2)),
        "UPDATE trajectories SET member = -1 WHERE task = 'a' AND \"group\" = 0 AND member = 0",
        "UPDATE trajectories SET member = 2 WHERE task = 'a' AND \"group\" = 0 AND member = 1",
        """WITH larger AS (UPDATE tasks SET group_size = 3 WHERE id = 'a'),
                gone AS (DELETE FROM trajectories WHERE task = 'a' AND "group" = 0 AND member = 1)
            INSERT INTO trajectories (task, "group", member, state) SELECT task, number, 2, 'open' FROM groups WHERE task = 'a'""",
    ],
    "void groups are counted once": [
        "UPDATE tasks SET voided = voided + 1 WHERE id = 'a'",
        "UPDATE tasks SET voided = voided - 1 WHERE id = 'stuck'",
    ],
    "an ended task has no trajectory that is neither trained nor void": [
        *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'live'" for state in STATES),
        *(f"UPDATE trajectories SET state = '{s}' WHERE task = 'a' AND \"group\" = 0 AND member = 0" for s in ("open", "scored")),
    ],
    "an ended task has no group that is neither trained nor void": [
        *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'live'" for state in STATES),
        *(f"UPDATE groups SET state = '{state}' WHERE task = 'a' AND number = 0" for state in ("open", "ready", "batched")),
    ],
    "a trajectory's state agrees with its group's": [
        "UPDATE groups SET state = 'ready' WHERE task = 'live' AND number = 0",
        *(f"UPDATE trajectories SET state = 'open' WHERE task = '{task}' AND member = 0" for task in ("a", "sent")),
        "UPDATE trajectories SET state = 'trained' WHERE task = 'live' AND \"group\" = 4 AND member = 0",
        "UPDATE trajectories SET state = 'open' WHERE task = 'live' AND \"group\" = 5 AND member = 0",
    ],
    "an open group waits for at least one member": [
        "UPDATE trajectories SET state = 'scored', reward = 0, sequence = 1000 + member WHERE task = 'live' AND state = 'open'",
        "UPDATE groups SET state = 'open' WHERE task = 'live' AND number = 5",
    ],
    "an overdue group is void within a minute": [
        """WITH patient AS (
                UPDATE tasks SET spec = jsonb_set(spec, '{limits,episode_timeout_s}', '86400000') WHERE id <> 'live')
            UPDATE groups SET deadline_at = now() - interval '1 hour', admitted_at = now() - interval '2 days'
            WHERE task = 'live' AND state = 'open'""",
        OVERDUE.format(pool="another"),
    ],
    "a task's version is the number of its trained steps": [
        "DELETE FROM steps WHERE task = 'a' AND version = 1",
        "DELETE FROM steps WHERE task = 'a'",
        "UPDATE tasks SET version = version - 1 WHERE id = 'a'",
    ],
    "trained steps are contiguous from 0, and at most one more was sent": [
        *(f"UPDATE steps SET version = {version} WHERE task = 'a' AND version = 2" for version in (-1, 3, 7)),
        "UPDATE steps SET version = 1 WHERE task = 'sent'",
    ],
    "a step of an ended task is trained or void, one of a live task is not void": [
        "UPDATE tasks SET state = 'running' WHERE id = 'failed'",
        *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'sent'" for state in STATES),
    ],
    "a finished task trained every step, or says what stopped it": ["UPDATE tasks SET steps = steps + 1 WHERE id = 'a'"],
    "an evaluation is over when all of its groups are": [
        "UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3",
        f"UPDATE groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND number = {FIRST_EVALUATED}",
        """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a')
            UPDATE groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND version = 0 AND protocol IS NOT NULL""",
    ],
    "an ended task has no running evaluation, and each finished evaluation has one event": [
        "DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0",
        EVENT.format("'acme', 'a', 'evaluation'"),
        "UPDATE events SET task = 'live' WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0",
        *(f"{RUNNING_EVALUATION} UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'a'" for state in STATES),
    ],
    "the ledger has what each evaluation consumed, and nothing else": [
        *(
            f"UPDATE ledger SET tokens = tokens {change} WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}"
            for change in ("+ 1", "- 1")
        ),
        f"DELETE FROM ledger WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}",
        f"{LEDGER} ('acme', 'a', 'evaluation', 99, 5)",
    ],
    "a step has as many groups as its task says, in the step's own state": [
        "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0",
        "DELETE FROM groups WHERE task = 'a' AND step = 0",
        "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0",
        f"{GROUP} (2, 'a', 6, 0, 'trained', 0, 0, 0, now(), NULL, 0)",
    ],
    "a trained or batched group belongs to an existing step": [
        "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0",
        "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0",
    ],
    "no trained or waiting group is staler than its task allows": [
        *(f"UPDATE groups SET version = version {change} WHERE task = 'a' AND number = 4" for change in ("- 2", "+ 3")),
        "UPDATE groups SET version = version - 2 WHERE task = 'live' AND state = 'ready'",
    ],
    "a scored message is one group's, and names each member once": [
        f"""UPDATE trajectories SET sequence = (SELECT min(sequence) FROM trajectories WHERE task = 'a' AND "group" = 0)
            WHERE task = '{task}' AND "group" = 1 AND member = 0"""
        for task in ("a", "failed")
    ],
    "a step's numbers are those of its trajectories": [
        f"UPDATE steps SET {column} = {column} {change} WHERE task = 'a' AND version = 0"
        for column, by in (("reward", "0.01"), ("sampled_tokens", "1"), ("staleness_max", "1"))
        for change in (f"+ {by}", f"- {by}")
    ],
    "the ledger has what each settled group consumed, and nothing else": [
        "DELETE FROM ledger WHERE kind = 'sampled' AND task = 'a' AND number = 0",
        *(
            f"UPDATE ledger SET tokens = tokens {change} WHERE kind = '{kind}' AND task = '{task}' AND number = 0"
            for change in ("+ 1", "- 1")
            for kind in ("prompt", "sampled")
            for task in ("a", "sent")
        ),
        *(f"{LEDGER} ('acme', 'a', '{kind}', 99, 5)" for kind in ("prompt", "sampled")),
    ],
    "the ledger has each trained step once, and nothing else": [
        "DELETE FROM ledger WHERE kind = 'trained' AND task = 'a' AND number = 2",
        f"{LEDGER} ('acme', 'a', 'trained', 99, 5)",
    ],
    "a task's totals are what the ledger has of it": [
        *(
            f"UPDATE tasks SET {column} = {column} {change} WHERE id = 'a'"
            for column in ("booked_tokens", "sampled_tokens")
            for change in ("+ 1", "- 1")
        ),
        *(f"UPDATE tasks SET {column} = 1 WHERE id = 'refused'" for column in ("booked_tokens", "sampled_tokens")),
    ],
    "a task has paid the amount on its invoice": [
        *(
            f"UPDATE tasks SET {column} = {column} + 1 WHERE id = '{task}'"
            for column in ("paid_tokens", "paid_money")
            for task in ("a", "refused")
        ),
        *(f"UPDATE tasks SET {column} = {column} - 1 WHERE id = 'a'" for column in ("paid_tokens", "paid_money")),
        "ALTER TABLE ledger DISABLE TRIGGER count_forgiven; UPDATE ledger SET paid_by = 'nobody' WHERE task = 'a'",
    ],
    "every ledger entry names its task's tenant": [
        "UPDATE ledger SET tenant = 'other' WHERE task = 'a' AND kind = 'trained'",
        "UPDATE ledger SET tenant = 'acme' WHERE task = 'live' AND kind = 'trained'",
    ],
    "every stored blob belongs to a task of a tenant": [
        "INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES ('b', 'unknown', 1, 'adapter', 1)",
    ],
    "an event about a task is its tenant's, but for refusals": [
        *(EVENT.format(f"'{tenant}', 'a', '{event}'") for tenant in ("aaa", "zzz") for event in ("aaa", "zzz")),
    ],
    "a deleted tenant has neither tasks nor keys": [
        "UPDATE tenants SET deleted_at = now() WHERE id = 'acme'",
        """WITH deleted AS (INSERT INTO tenants (id, deleted_at) VALUES ('old', now()) RETURNING id)
            INSERT INTO keys (key, tenant, name, role) SELECT rpad('U', 56, 'A'), id, 'k', 'owner' FROM deleted""",
    ],
    "every accepted action is audited under an existing tenant": [
        *(
            f"INSERT INTO audit (tenant, via, verb, target, outcome) VALUES ('{tenant}', 'ask', 'adapter', 'a.v1', 'accepted')"
            for tenant in ("", "zzz")
        ),
        "INSERT INTO audit (tenant, via, verb, target, outcome) VALUES ('zzz', 'key', 'submit', 'a', 'accepted')",
    ],
    "a task's adapter and checkpoint are its last trained step's": [
        "UPDATE tasks SET checkpoint = NULL WHERE id = 'a'",
        "UPDATE tasks SET adapter = NULL WHERE id = 'a'",
        "UPDATE tasks SET adapter = '{}' WHERE id = 'refused'",
        "UPDATE tasks SET adapter = (SELECT adapter FROM steps WHERE task = 'a' AND version = 1) WHERE id = 'a'",
        "UPDATE tasks SET checkpoint = (SELECT checkpoint FROM steps WHERE task = 'a' AND version = 1) WHERE id = 'a'",
    ],
    "a trained step's adapter is its own task's and version's": [
        f"UPDATE steps SET adapter = jsonb_set(adapter, '{{{field}}}', '{value}') WHERE task = 'a' AND version = 0"
        for field, value in (("task", '"0"'), ("task", '"live"'), ("version", "0"), ("version", "9"))
    ],
    "each step, and each task's end, has one event": [
        "DELETE FROM events WHERE task = 'a'",
        "DELETE FROM events WHERE task = 'a' AND event = 'finished'",
        "DELETE FROM events WHERE task = 'stuck' AND event = 'cancelled'",
        "DELETE FROM events WHERE task = 'failed' AND event = 'failed'",
        "DELETE FROM events WHERE task = 'a' AND event = 'step' AND (data ->> 'version')::int = 2",
        "UPDATE events SET tenant = 'other' WHERE task = 'a' AND event = 'finished'",
        *(EVENT.format(f"'acme', 'a', '{event}'") for event in ("finished", "step")),
        *(EVENT.format(f"'other', 'live', '{event}'") for event in ("finished", "cancelled", "failed")),
    ],
    "no message waits in the outbox for more than a minute": [
        """INSERT INTO outbox (subject, message_id, headers, body, created_at)
            VALUES ('events.acme.a', 'x', '{}', '', now() - interval '1 hour')""",
    ],
    **slice_breakages.VIOLATIONS,
}
"""Rule → statements, each of which violates it."""

COMPLIANT: dict[str, list[str]] = {
    "served tokens are on the bill as they were reported, at the prices of their time": [
        served(ONE, booked()),
        served(BOTH, booked(), booked(kind="sampled", tokens=3)),
        served(BASE, booked(task="")),
        served(f"{ONE}, {ANOTHER}", booked(tokens=10), booked(kind="sampled", tokens=3)),
        served(ONE, booked(), booked(day=f"{TODAY} - 1")),
        served(f"{ONE}, {EARLIER}", booked(), booked(day=f"{TODAY} - 1", tokens=6)),
        served(ONE, booked(), booked(tenant="other")),
        f"{USAGE} ('acme', '2030-01-02', 'tiny', '', 'served_prompt', 1, 1)",
        f"WITH gone AS (UPDATE tenants SET deleted_at = now() WHERE id = 'acme') {REQUEST} {ONE}",
    ],
    "every stored blob belongs to a task of a tenant": [
        """WITH gone AS (
            INSERT INTO deleted_tasks (id, tenant, name, state, version, prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens,
                deleted_by, submitted_at, ended_at) VALUES ('gone', 'acme', '', 'finished', 1, 1, 1, 1, 0, 1, now(), now()))
        INSERT INTO stored_blobs (name, task, version, kind, bytes) VALUES ('b', 'gone', 1, 'adapter', 1)""",
    ],
    "an event about a task is its tenant's, but for refusals": [EVENT.format(f"'{tenant}', 'a', 'rejected'") for tenant in ("aaa", "zzz")],
    "a deleted tenant has neither tasks nor keys": [
        "INSERT INTO keys (key, tenant, name, role) SELECT rpad('U', 56, 'A'), 'acme', 'k', 'owner'",
        "INSERT INTO tenants (id, deleted_at) VALUES ('old', now())",
    ],
    "every accepted action is audited under an existing tenant": [
        "INSERT INTO audit (tenant, via, verb, outcome) VALUES ('acme', 'ask', 'adapter', 'accepted'), ('_all', 'key', 'x', 'accepted')",
        "INSERT INTO audit (tenant, via, verb, outcome, reason, hour) VALUES ('', 'ask', 'adapter', 'refused', 'task', now())",
        "INSERT INTO audit (tenant, via, verb, outcome) VALUES ('', 'key', 'preview', 'accepted')",
    ],
    "a task's totals are what the ledger has of it": [
        f"{LEDGER} ('acme', 'a', '{kind}', 1, 7)" for kind in ("env_ms", "stored_byte_hours", "accelerator")
    ],
    "an overdue group is void within a minute": [
        "UPDATE groups SET deadline_at = now() - interval '1 hour' WHERE state = 'open'",
        "UPDATE groups SET admitted_at = now() - interval '2 days' WHERE state = 'open'",
        OVERDUE.format(pool="tiny"),
    ],
    "an ended task has no running evaluation, and each finished evaluation has one event": [
        f"{RUNNING_EVALUATION} UPDATE tasks SET state = 'running' WHERE id = 'a'",
    ],
    "an evaluation is over when all of its groups are": [
        """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 0 AND protocol = 'greedy')
        UPDATE groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND version = 0 AND protocol = 'greedy'""",
        """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 0)
        UPDATE groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND version = 0 AND protocol IS NOT NULL""",
    ],
    "the ledger has what each evaluation consumed, and nothing else": [
        f"""WITH consumed AS (
            UPDATE trajectories SET sampled_tokens = sampled_tokens + 5
            WHERE task = 'a' AND "group" = {FIRST_EVALUATED} AND member = 0)
        UPDATE ledger SET tokens = tokens + 5 WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}""",
    ],
    "no trained or waiting group is staler than its task allows": ["UPDATE groups SET version = version - 9 WHERE state = 'void'"],
    "a scored message is one group's, and names each member once": ["UPDATE trajectories SET sequence = 7000 + \"group\" WHERE task = 'a'"],
    "a step's numbers are those of its trajectories": [
        """WITH older AS (
            UPDATE groups SET version = 1 WHERE task = 'a' AND number = (SELECT min(number) FROM groups WHERE task = 'a' AND step = 2)),
        newer AS (
            UPDATE groups SET version = 2 WHERE task = 'a' AND number = (SELECT max(number) FROM groups WHERE task = 'a' AND step = 2))
        UPDATE steps SET staleness_max = 1 WHERE task = 'a' AND version = 2""",
        """WITH bad AS (
            UPDATE trajectories j SET reward = -5 FROM groups g
            WHERE g.task = 'a' AND g.step = 0 AND j.task = g.task AND j."group" = g.number)
        UPDATE steps SET reward = -5 WHERE task = 'a' AND version = 0""",
    ],
    **slice_breakages.COMPLIANT,
}
"""Rule → statements that keep it, and are close to violations."""
