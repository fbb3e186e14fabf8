"""What breaks each rule of the doctor, in a world at rest: statements for the record, functions for what NATS holds."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from common import streams
from common.blobs import Blobs
from common.bus import Outgoing
from common.messages import DeadLetter, OpenGroup, TaskStatus
from scheduler_svc.doctor import blob_rules, stream_rules
from scheduler_svc.doctor.runner import Depth
from tests.scheduler.finished import AT_REST, Copy, store
from tests.scheduler.stages import scored, updated

STATES = ("finished", "cancelled", "failed", "rejected")
"""Of a task that has ended."""
GROUP = "INSERT INTO groups (task, number, version, state, row, seed, charged_tokens, deadline_at, void_reason, step) VALUES"
MEMBER = 'INSERT INTO trajectories (task, "group", member, state) VALUES'
EVENT = "INSERT INTO events (tenant, task, event, data) VALUES"
LEDGER = "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES"
WITHOUT_LAST = "WITH gone AS (DELETE FROM groups WHERE task = 'a' AND number = 5)"
FIRST_EVALUATED = "(SELECT min(number) FROM evaluation_groups WHERE task = 'a')"
UNDER_WAY = """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3),
    untold AS (DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 3)"""

RECORD: list[tuple[str, Sequence[str]]] = [
    (
        "every admitted group has its row, numbered from 0",
        [
            "DELETE FROM groups WHERE task = 'a' AND number = 5",
            "DELETE FROM groups WHERE task = 'a' AND number = 0",
            "DELETE FROM groups WHERE task = 'a'",
            "UPDATE tasks SET admitted = admitted - 1 WHERE id = 'a'",
            f"{GROUP} ('a', -1, 0, 'void', 0, 0, 0, now(), 'stale', NULL)",
            *(f"{WITHOUT_LAST} {GROUP} ('a', {number}, 0, 'void', 0, 0, 0, now(), 'stale', NULL)" for number in (-1, 7)),
        ],
    ),
    (
        "every group has one trajectory for each member",
        [
            "DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0",
            *(f"DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0 AND member = {member}" for member in (0, 1)),
            *(f"{MEMBER} ('a', 0, {member}, 'open')" for member in (-1, 2)),
            "UPDATE trajectories SET member = -1 WHERE task = 'a' AND \"group\" = 0 AND member = 0",
            "UPDATE trajectories SET member = 2 WHERE task = 'a' AND \"group\" = 0 AND member = 1",
            """WITH larger AS (UPDATE tasks SET group_size = 3 WHERE id = 'a'),
                gone AS (DELETE FROM trajectories WHERE task = 'a' AND "group" = 0 AND member = 1)
            INSERT INTO trajectories (task, "group", member, state) SELECT task, number, 2, 'open' FROM groups WHERE task = 'a'""",
        ],
    ),
    (
        "void groups are counted once",
        ["UPDATE tasks SET voided = voided + 1 WHERE id = 'a'", "UPDATE tasks SET voided = voided - 1 WHERE id = 'stuck'"],
    ),
    (
        "an ended task has no trajectory that is neither trained nor void",
        [
            *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'live'" for state in STATES),
            *(f"UPDATE trajectories SET state = '{s}' WHERE task = 'a' AND \"group\" = 0 AND member = 0" for s in ("open", "scored")),
        ],
    ),
    (
        "an ended task has no group that is neither trained nor void",
        [
            *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'live'" for state in STATES),
            *(f"UPDATE groups SET state = '{state}' WHERE task = 'a' AND number = 0" for state in ("open", "ready", "batched")),
        ],
    ),
    (
        "a trajectory's state agrees with its group's",
        [
            "UPDATE groups SET state = 'ready' WHERE task = 'live' AND number = 0",
            *(f"UPDATE trajectories SET state = 'open' WHERE task = '{task}' AND member = 0" for task in ("a", "sent")),
            "UPDATE trajectories SET state = 'trained' WHERE task = 'live' AND \"group\" = 4 AND member = 0",
            "UPDATE trajectories SET state = 'open' WHERE task = 'live' AND \"group\" = 5 AND member = 0",
        ],
    ),
    (
        "an open group waits for at least one member",
        [
            "UPDATE trajectories SET state = 'scored', reward = 0, sequence = 1000 + member WHERE task = 'live' AND state = 'open'",
            "UPDATE groups SET state = 'open' WHERE task = 'live' AND number = 5",
        ],
    ),
    (
        "an overdue group is void within a minute",
        [
            """WITH patient AS (
                UPDATE tasks SET spec = jsonb_set(spec, '{limits,episode_timeout_s}', '86400000') WHERE id <> 'live')
            UPDATE groups SET deadline_at = now() - interval '1 hour', admitted_at = now() - interval '2 days'
            WHERE task = 'live' AND state = 'open'""",
        ],
    ),
    (
        "a task's version is the number of its trained steps",
        [
            "DELETE FROM steps WHERE task = 'a' AND version = 1",
            "DELETE FROM steps WHERE task = 'a'",
            "UPDATE tasks SET version = version - 1 WHERE id = 'a'",
        ],
    ),
    (
        "trained steps are contiguous from 0, and at most one more was sent",
        [
            *(f"UPDATE steps SET version = {version} WHERE task = 'a' AND version = 2" for version in (-1, 3, 7)),
            "UPDATE steps SET version = 1 WHERE task = 'sent'",
        ],
    ),
    (
        "a step of an ended task is trained or void, one of a live task is not void",
        [
            "UPDATE tasks SET state = 'running' WHERE id = 'failed'",
            *(f"UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'sent'" for state in STATES),
        ],
    ),
    ("a finished task trained every step, or says what stopped it", ["UPDATE tasks SET steps = steps + 1 WHERE id = 'a'"]),
    (
        "an evaluation is over when all of its groups are",
        [
            "UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3",
            f"UPDATE evaluation_groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND number = {FIRST_EVALUATED}",
            """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a')
            UPDATE evaluation_groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND version = 0""",
        ],
    ),
    (
        "an ended task has no evaluation under way, and is told of each that finished",
        [
            "DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0",
            f"{EVENT} ('acme', 'a', 'evaluation', '{{}}')",
            "UPDATE events SET task = 'live' WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0",
            *(f"{UNDER_WAY} UPDATE tasks SET state = '{state}', reason = 'x' WHERE id = 'a'" for state in STATES),
        ],
    ),
    (
        "the ledger has what each evaluation consumed, and nothing else",
        [
            *(
                f"UPDATE ledger SET tokens = tokens {change} WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}"
                for change in ("+ 1", "- 1")
            ),
            f"DELETE FROM ledger WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}",
            f"{LEDGER} ('acme', 'a', 'evaluation', 99, 5)",
        ],
    ),
    (
        "a step has as many groups as its task says, in the step's own state",
        [
            "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0",
            "DELETE FROM groups WHERE task = 'a' AND step = 0",
            "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0",
            f"{GROUP} ('a', 6, 0, 'trained', 0, 0, 0, now(), NULL, 0)",
        ],
    ),
    (
        "a trained or batched group belongs to a step that is there",
        [
            "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0",
            "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0",
        ],
    ),
    (
        "nothing trained or waiting is staler than its task allows",
        [f"UPDATE groups SET version = version {change} WHERE task = 'a' AND number = 4" for change in ("- 2", "+ 3")]
        + ["UPDATE groups SET version = version - 2 WHERE task = 'live' AND state = 'ready'"],
    ),
    (
        "a scored message is one group's, and names each member once",
        [
            f"""UPDATE trajectories SET sequence = (SELECT min(sequence) FROM trajectories WHERE task = 'a' AND "group" = 0)
            WHERE task = '{task}' AND "group" = 1 AND member = 0"""
            for task in ("a", "failed")
        ],
    ),
    (
        "a step's numbers are those of its trajectories",
        [
            f"UPDATE steps SET {column} = {column} {change} WHERE task = 'a' AND version = 0"
            for column, by in (("reward", "0.01"), ("sampled_tokens", "1"), ("staleness_max", "1"))
            for change in (f"+ {by}", f"- {by}")
        ],
    ),
    (
        "the ledger has what each settled group consumed, and nothing else",
        [
            "DELETE FROM ledger WHERE kind = 'sampled' AND task = 'a' AND number = 0",
            *(
                f"UPDATE ledger SET tokens = tokens {change} WHERE kind = '{kind}' AND task = '{task}' AND number = 0"
                for change in ("+ 1", "- 1")
                for kind in ("prompt", "sampled")
                for task in ("a", "sent")
            ),
            *(f"{LEDGER} ('acme', 'a', '{kind}', 99, 5)" for kind in ("prompt", "sampled")),
        ],
    ),
    (
        "the ledger has each trained step once, and nothing else",
        ["DELETE FROM ledger WHERE kind = 'trained' AND task = 'a' AND number = 2", f"{LEDGER} ('acme', 'a', 'trained', 99, 5)"],
    ),
    (
        "a task's totals are what the ledger has of it",
        [
            *(
                f"UPDATE tasks SET {column} = {column} {change} WHERE id = 'a'"
                for column in ("booked_tokens", "sampled_tokens")
                for change in ("+ 1", "- 1")
            ),
            *(f"UPDATE tasks SET {column} = 1 WHERE id = 'refused'" for column in ("booked_tokens", "sampled_tokens")),
        ],
    ),
    (
        "what is booked is booked to the task's tenant",
        [
            "UPDATE ledger SET tenant = 'other' WHERE task = 'a' AND kind = 'trained'",
            "UPDATE ledger SET tenant = 'acme' WHERE task = 'live' AND kind = 'trained'",
        ],
    ),
    (
        "a task's adapter and checkpoint are its last trained step's",
        [
            "UPDATE tasks SET checkpoint = NULL WHERE id = 'a'",
            "UPDATE tasks SET adapter = NULL WHERE id = 'a'",
            "UPDATE tasks SET adapter = '{}' WHERE id = 'refused'",
            "UPDATE tasks SET adapter = (SELECT adapter FROM steps WHERE task = 'a' AND version = 1) WHERE id = 'a'",
            "UPDATE tasks SET checkpoint = (SELECT checkpoint FROM steps WHERE task = 'a' AND version = 1) WHERE id = 'a'",
        ],
    ),
    (
        "a trained step's adapter is its own task's and version's",
        [
            f"UPDATE steps SET adapter = jsonb_set(adapter, '{{{field}}}', '{value}') WHERE task = 'a' AND version = 0"
            for field, value in (("task", '"0"'), ("task", '"live"'), ("version", "0"), ("version", "9"))
        ],
    ),
    (
        "each step, and each task's end, was told once",
        [
            "DELETE FROM events WHERE task = 'a'",
            "DELETE FROM events WHERE task = 'a' AND event = 'finished'",
            "DELETE FROM events WHERE task = 'stuck' AND event = 'cancelled'",
            "DELETE FROM events WHERE task = 'failed' AND event = 'failed'",
            "DELETE FROM events WHERE task = 'a' AND event = 'step' AND (data ->> 'version')::int = 2",
            "UPDATE events SET tenant = 'other' WHERE task = 'a' AND event = 'finished'",
            *(f"{EVENT} ('acme', 'a', '{event}', '{{}}')" for event in ("finished", "step")),
            *(f"{EVENT} ('other', 'live', '{event}', '{{}}')" for event in ("finished", "cancelled", "failed")),
        ],
    ),
    (
        "no message waits in the outbox for more than a minute",
        [
            """INSERT INTO outbox (subject, message_id, headers, body, created_at)
            VALUES ('events.acme.a', 'x', '{}', '', now() - interval '1 hour')""",
        ],
    ),
]
"""Rule → statements, each of which breaks it."""

SOUND: list[tuple[str, str]] = [
    ("an overdue group is void within a minute", "UPDATE groups SET deadline_at = now() - interval '1 hour' WHERE state = 'open'"),
    ("an overdue group is void within a minute", "UPDATE groups SET admitted_at = now() - interval '2 days' WHERE state = 'open'"),
    (
        "an ended task has no evaluation under way, and is told of each that finished",
        f"{UNDER_WAY} UPDATE tasks SET state = 'running' WHERE id = 'a'",
    ),
    (
        "an evaluation is over when all of its groups are",
        """WITH running AS (UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 0)
        UPDATE evaluation_groups SET state = 'open', deadline_at = now() WHERE task = 'a' AND version = 0""",
    ),
    (
        "the ledger has what each evaluation consumed, and nothing else",
        f"""WITH consumed AS (
            UPDATE evaluation_members SET sampled_tokens = sampled_tokens + 5
            WHERE task = 'a' AND number = {FIRST_EVALUATED} AND member = 0)
        UPDATE ledger SET tokens = tokens + 5 WHERE task = 'a' AND kind = 'evaluation' AND number = {FIRST_EVALUATED}""",
    ),
    ("nothing trained or waiting is staler than its task allows", "UPDATE groups SET version = version - 9 WHERE state = 'void'"),
    (
        "a scored message is one group's, and names each member once",
        "UPDATE trajectories SET sequence = 7000 + \"group\" WHERE task = 'a'",
    ),
    (
        "a step's numbers are those of its trajectories",
        """WITH older AS (
            UPDATE groups SET version = 1 WHERE task = 'a' AND number = (SELECT min(number) FROM groups WHERE task = 'a' AND step = 2)),
        newer AS (
            UPDATE groups SET version = 2 WHERE task = 'a' AND number = (SELECT max(number) FROM groups WHERE task = 'a' AND step = 2))
        UPDATE steps SET staleness_max = 1 WHERE task = 'a' AND version = 2""",
    ),
    (
        "a step's numbers are those of its trajectories",
        """WITH bad AS (
            UPDATE trajectories j SET reward = -5 FROM groups g
            WHERE g.task = 'a' AND g.step = 0 AND j.task = g.task AND j."group" = g.number)
        UPDATE steps SET reward = -5 WHERE task = 'a' AND version = 0""",
    ),
]
"""Rule → a change that leaves it whole, close to one that would not."""


Breaking = Callable[[Copy], Awaitable[None]]


async def leave_a_message_of_an_ended_task(world: Copy) -> None:
    await world.bus.publish(replace(scored(world.made.opened[0], 0, reward=1.0), message_id="late"))


async def leave_a_message_of_an_unknown_task(world: Copy) -> None:
    group = world.made.opened[0].model_copy(update={"task": "nobody"})
    await world.bus.publish(Outgoing(streams.open_group("elsewhere", "nobody", 0), OpenGroup(group=group), "x"))


async def lose_a_scored_message(world: Copy) -> None:
    await world.bus.streams.purge(streams.SCORED, "trajectories.scored.live.>")


async def announce_other_weights(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.a")
    other = updated(world.made.batches[0])
    await world.bus.publish(replace(other, message_id="other"))


async def lose_an_announcement(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.live")


async def say_something_else_to_users(world: Copy) -> None:
    status = await world.bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.kv.put(streams.TASKS_BUCKET, "a", status.model_copy(update={"state": "running"}))


async def leave_a_dead_letter_off_the_record(world: Copy) -> None:
    letter = DeadLetter(stage="open", subject="x", reason="y", attempts=1, headers={}, body=b"")
    await world.bus.publish(Outgoing(streams.failed("open", "a"), letter, "another letter"))


async def lose_a_status(world: Copy) -> None:
    await world.bus.kv.delete(streams.TASKS_BUCKET, "a")


async def show_an_older_version_to_users(world: Copy) -> None:
    status = await world.bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.kv.put(streams.TASKS_BUCKET, "a", status.model_copy(update={"version": 1}))


async def lose_an_adapter(world: Copy) -> None:
    [name] = [name for name in await Blobs(world.bus).names() if name.startswith("a.v1.adapter")]
    await Blobs(world.bus).delete(name)


async def lose_the_content_of_blobs(world: Copy) -> None:
    await world.bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")


async def leave_a_blob_of_a_step_taken_twice(world: Copy) -> None:
    await store(Blobs(world.bus), world.folder, "a", 1, "other bits")


async def leave_a_blob_of_an_unknown_task(world: Copy) -> None:
    await store(Blobs(world.bus), world.folder, "nobody", 1, kinds=["adapter"])


async def leave_a_blob_that_no_step_can_name(world: Copy) -> None:
    (world.folder / "strange").mkdir()
    await Blobs(world.bus).put_folder("strange", world.folder / "strange")


async def change_a_digest(world: Copy) -> None:
    zeros = f"jsonb_set(adapter, '{{blob,sha256}}', '\"{'0' * 64}\"')"
    await world.execute(f"UPDATE steps SET adapter = {zeros} WHERE task = 'a' AND version = 2")


async def delete_a_task(world: Copy) -> None:
    """As the record says it of `gone`, of which nothing is left."""
    await world.execute(
        "INSERT INTO deleted_tasks (id, tenant, name, state, version, prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens,"
        " deleted_by, freed_bytes, submitted_at, ended_at) VALUES ('gone', 'acme', 'gone', 'finished', 3, 1, 1, 1, 0, 1, 0, now(), now())"
    )


async def announce_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    step = updated(world.made.batches[0].model_copy(update={"task": "gone"}))
    await world.bus.publish(step)


async def leave_the_status_of_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    status = await world.bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.kv.put(streams.TASKS_BUCKET, "gone", status.model_copy(update={"task": "gone"}))


async def leave_a_blob_of_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    await store(Blobs(world.bus), world.folder, "gone", 1)


STORED: list[tuple[str, Breaking]] = [
    (stream_rules.ORPHANS, leave_a_message_of_an_ended_task),
    (stream_rules.ORPHANS, leave_a_message_of_an_unknown_task),
    (stream_rules.SCORES, lose_a_scored_message),
    (stream_rules.WEIGHTS, announce_other_weights),
    (stream_rules.ANNOUNCED, lose_an_announcement),
    (stream_rules.STATUS, say_something_else_to_users),
    (stream_rules.STATUS, lose_a_status),
    (stream_rules.STATUS, show_an_older_version_to_users),
    (stream_rules.LETTERS, leave_a_dead_letter_off_the_record),
    (blob_rules.MISSING, lose_an_adapter),
    (blob_rules.MISSING, lose_the_content_of_blobs),
    (blob_rules.ORPHANS, leave_a_blob_of_a_step_taken_twice),
    (blob_rules.ORPHANS, leave_a_blob_of_an_unknown_task),
    (blob_rules.ORPHANS, leave_a_blob_that_no_step_can_name),
    (blob_rules.DAMAGED, change_a_digest),
    (stream_rules.DELETED, announce_a_deleted_task),
    (stream_rules.DELETED, leave_the_status_of_a_deleted_task),
    (blob_rules.ORPHANS, leave_a_blob_of_a_deleted_task),
]


async def lose_the_announcements_of_an_ended_task(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.a")


async def announce_what_is_none_and_what_is_anothers(world: Copy) -> None:
    subject = streams.weight_updated("tiny", "a")
    await world.bus.publish_raw(subject, b"garbage", "garbage", {})
    await world.bus.streams.purge(streams.WEIGHTS, subject)
    other = next(batch for batch in world.made.batches if (batch.task, batch.version) == ("live", 0))
    await world.bus.publish(replace(updated(other), subject=subject, message_id="another's"))
    await world.bus.publish_raw(subject, b"garbage", "more garbage", {})


async def fail_to_read_a_letter_and_to_record_another(world: Copy) -> None:
    await world.bus.publish_raw(streams.failed("open", "a"), b"garbage", "garbage", {})
    letter = DeadLetter(stage="settle", subject="failed.open.a", reason="y", attempts=1, headers={}, body=b"")
    await world.bus.publish(Outgoing(streams.failed("settle", "none"), letter, "letter about a letter"))


SHALLOW, PATIENT = replace(AT_REST, deep=False), replace(AT_REST, grace_s=3600)
SOUND_STORES: list[tuple[str, Breaking, Depth]] = [
    (stream_rules.ANNOUNCED, lose_the_announcements_of_an_ended_task, AT_REST),
    (stream_rules.WEIGHTS, announce_what_is_none_and_what_is_anothers, AT_REST),
    (stream_rules.LETTERS, fail_to_read_a_letter_and_to_record_another, AT_REST),
    (stream_rules.DELETED, delete_a_task, AT_REST),
    (blob_rules.DAMAGED, change_a_digest, SHALLOW),
    (blob_rules.DAMAGED, lose_an_adapter, AT_REST),
    (blob_rules.ORPHANS, leave_a_blob_of_a_step_taken_twice, PATIENT),
]
"""Rule → what leaves it whole, at that depth."""
