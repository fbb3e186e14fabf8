"""What breaks each rule of the doctor, in a world at rest: statements for the record, functions for what NATS holds."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from common import streams
from common.blobs import Blobs
from common.bus import Outgoing
from common.messages import DeadLetter, OpenGroup, TaskStatus
from scheduler_svc.doctor import messages, stored
from tests.scheduler.finished import Copy, store
from tests.scheduler.stages import scored, updated

RECORD: list[tuple[str, str]] = [
    ("every admitted group has its row, numbered from 0", "DELETE FROM groups WHERE task = 'a' AND number = 5"),
    ("every group has one trajectory for each member", "DELETE FROM trajectories WHERE task = 'a' AND \"group\" = 0 AND member = 1"),
    ("void groups are counted once", "UPDATE tasks SET voided = voided + 1 WHERE id = 'a'"),
    (
        "an ended task has no trajectory that is neither trained nor void",
        "UPDATE trajectories SET state = 'scored' WHERE task = 'a' AND \"group\" = 0 AND member = 0",
    ),
    ("an ended task has no group that is neither trained nor void", "UPDATE groups SET state = 'batched' WHERE task = 'a' AND number = 0"),
    ("a trajectory's state agrees with its group's", "UPDATE groups SET state = 'ready' WHERE task = 'live' AND number = 0"),
    (
        "an open group waits for at least one member",
        "UPDATE trajectories SET state = 'scored', reward = 0, sequence = 1000 + member WHERE task = 'live' AND state = 'open'",
    ),
    (
        "an overdue group is void within a minute",
        """UPDATE groups SET deadline_at = now() - interval '1 hour', admitted_at = now() - interval '2 days'
        WHERE task = 'live' AND state = 'open'""",
    ),
    ("a task's version is the number of its trained steps", "DELETE FROM steps WHERE task = 'a' AND version = 1"),
    ("trained steps are contiguous from 0, and at most one more was sent", "UPDATE steps SET version = 7 WHERE task = 'a' AND version = 2"),
    (
        "a step of an ended task is trained or void, one of a live task is not void",
        "UPDATE tasks SET state = 'running' WHERE id = 'failed'",
    ),
    ("a finished task trained every step, or says what stopped it", "UPDATE tasks SET steps = steps + 1 WHERE id = 'a'"),
    ("an evaluation is over when all of its groups are", "UPDATE evaluations SET state = 'running' WHERE task = 'a' AND version = 3"),
    (
        "an ended task has no evaluation under way, and is told of each that finished",
        "DELETE FROM events WHERE task = 'a' AND event = 'evaluation' AND (data ->> 'version')::int = 0",
    ),
    (
        "the ledger has what each evaluation consumed, and nothing else",
        "UPDATE ledger SET tokens = tokens + 1 WHERE task = 'a' AND kind = 'evaluation' AND number = 1000000000",
    ),
    ("a step has as many groups as its task says, in the step's own state", "UPDATE groups SET step = 2 WHERE task = 'a' AND number = 0"),
    ("a trained or batched group belongs to a step that is there", "UPDATE groups SET step = 9 WHERE task = 'a' AND number = 0"),
    (
        "nothing trained or waiting is staler than its task allows",
        "UPDATE groups SET version = version - 2 WHERE task = 'a' AND number = 4",
    ),
    (
        "a scored message is one group's, and names each member once",
        "UPDATE trajectories SET sequence = (SELECT min(sequence) FROM trajectories WHERE task = 'a') WHERE task = 'failed'",
    ),
    ("a step's numbers are those of its trajectories", "UPDATE steps SET reward = reward + 0.01 WHERE task = 'a' AND version = 0"),
    (
        "the ledger has what each settled group consumed, and nothing else",
        "DELETE FROM ledger WHERE kind = 'sampled' AND task = 'a' AND number = 0",
    ),
    ("the ledger has each trained step once, and nothing else", "DELETE FROM ledger WHERE kind = 'trained' AND task = 'a' AND number = 2"),
    ("a task's totals are what the ledger has of it", "UPDATE tasks SET booked_tokens = booked_tokens - 1 WHERE id = 'a'"),
    ("what is booked is booked to the task's tenant", "UPDATE ledger SET tenant = 'other' WHERE task = 'a' AND kind = 'trained'"),
    ("a task's adapter and checkpoint are its last trained step's", "UPDATE tasks SET checkpoint = NULL WHERE id = 'a'"),
    (
        "a trained step's adapter is its own task's and version's",
        "UPDATE steps SET adapter = jsonb_set(adapter, '{task}', '\"live\"') WHERE task = 'a' AND version = 0",
    ),
    ("each step, and each task's end, was told once", "DELETE FROM events WHERE task = 'a' AND event = 'finished'"),
    (
        "no message waits in the outbox for more than a minute",
        """INSERT INTO outbox (subject, message_id, headers, body, created_at)
        VALUES ('events.acme.a', 'x', '{}', '', now() - interval '1 hour')""",
    ),
]


Breaking = Callable[[Copy], Awaitable[None]]


async def leave_a_message_of_an_ended_task(world: Copy) -> None:
    await world.bus.publish(replace(scored(world.made.opened[0], 0, reward=1.0), message_id="late"))


async def leave_a_message_of_an_unknown_task(world: Copy) -> None:
    group = world.made.opened[0].model_copy(update={"task": "nobody"})
    await world.bus.publish(Outgoing(streams.open_group("elsewhere", "nobody", 0), OpenGroup(group=group), "x"))


async def lose_a_scored_message(world: Copy) -> None:
    await world.bus.purge(streams.SCORED, "trajectories.scored.live.>")


async def announce_other_weights(world: Copy) -> None:
    await world.bus.purge(streams.WEIGHTS, "weight-updated.tiny.a")
    other = updated(world.made.batches[0])
    await world.bus.publish(replace(other, message_id="other"))


async def lose_an_announcement(world: Copy) -> None:
    await world.bus.purge(streams.WEIGHTS, "weight-updated.tiny.live")


async def say_something_else_to_users(world: Copy) -> None:
    status = await world.bus.get_value(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.put_value(streams.TASKS_BUCKET, "a", status.model_copy(update={"state": "running"}))


async def leave_a_dead_letter_off_the_record(world: Copy) -> None:
    letter = DeadLetter(stage="open", subject="x", reason="y", attempts=1, headers={}, body=b"")
    await world.bus.publish(Outgoing(streams.failed("open", "a"), letter, "another letter"))


async def lose_an_adapter(world: Copy) -> None:
    [name] = [name for name in await Blobs(world.bus).names() if name.startswith("a.v1.adapter")]
    await Blobs(world.bus).delete(name)


async def lose_the_content_of_blobs(world: Copy) -> None:
    await world.bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")


async def leave_a_blob_of_a_step_taken_twice(world: Copy) -> None:
    await store(Blobs(world.bus), world.folder, "a", 1, "other bits")


async def change_a_digest(world: Copy) -> None:
    zeros = f"jsonb_set(adapter, '{{blob,sha256}}', '\"{'0' * 64}\"')"
    await world.execute(f"UPDATE steps SET adapter = {zeros} WHERE task = 'a' AND version = 2")


STORED: list[tuple[str, Breaking]] = [
    (messages.ORPHANS, leave_a_message_of_an_ended_task),
    (messages.ORPHANS, leave_a_message_of_an_unknown_task),
    (messages.SCORES, lose_a_scored_message),
    (messages.WEIGHTS, announce_other_weights),
    (messages.ANNOUNCED, lose_an_announcement),
    (messages.STATUS, say_something_else_to_users),
    (messages.LETTERS, leave_a_dead_letter_off_the_record),
    (stored.MISSING, lose_an_adapter),
    (stored.MISSING, lose_the_content_of_blobs),
    (stored.ORPHANS, leave_a_blob_of_a_step_taken_twice),
    (stored.DAMAGED, change_a_digest),
]
