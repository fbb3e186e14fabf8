"""Violations of the rules about NATS: changes to a copy of the finished world."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from common import streams
from common.blobs import Blobs
from common.bus import Outgoing
from common.messages import OWN_FAMILY, BlobRef, CheckPackage, DeadLetter, OpenGroup, ReplicaReport, StatusesRemoved, TaskStatus, wheel_name
from scheduler_svc.doctor import blob_rules, stream_rules
from scheduler_svc.doctor.runner import Depth
from scheduler_svc.upkeep.deletion import sweeps
from tests.scheduler.doctor.bucket_breakages import (
    begin_a_process,
    die_three_times_alike,
    die_twice,
    forget_a_revoked_http_key,
    forget_an_ended_http_key,
    keep_an_ended_http_key,
    lose_an_http_key_that_will_end,
    record_an_alias,
    record_an_http_key,
    tell_of_a_deleted_alias,
    tell_of_a_recorded_http_key,
    tell_of_a_revoked_http_key,
    tell_of_an_alias,
    tell_of_an_http_key,
    tell_of_an_older_change,
    tell_of_another_pool,
    tell_of_another_token,
    work_after_three_deaths,
)
from tests.support.scheduler.finished import QUIESCENT, Copy, store
from tests.support.scheduler.stages import scored, updated

Change = Callable[[Copy], Awaitable[None]]


async def leave_a_message_of_an_ended_task(world: Copy) -> None:
    await world.bus.publish(replace(scored(world.made.opened[0], 0, reward=1.0), message_id="late"))


async def leave_a_message_of_an_unknown_task(world: Copy) -> None:
    group = world.made.opened[0].model_copy(update={"task": "unknown"})
    await world.bus.publish(Outgoing(streams.open_group("elsewhere", "unknown", 0), OpenGroup(group=group), "x"))


async def lose_a_scored_message(world: Copy) -> None:
    await world.bus.streams.purge(streams.SCORED, "trajectories.scored.live.>")


async def announce_other_weights(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.a")
    other = updated(world.made.batches[0])
    await world.bus.publish(replace(other, message_id="other"))


async def lose_an_announcement(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.live")


async def put_status(world: Copy, key: str, **changes: object) -> None:
    """Put the status of task `a`, with changes, at `key`."""
    status = await world.bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
    assert status is not None
    await world.bus.kv.put(streams.TASKS_BUCKET, key, status.model_copy(update=changes))


async def show_another_state_to_users(world: Copy) -> None:
    await put_status(world, "a", state="running")


async def publish_a_dead_letter_that_is_not_recorded(world: Copy) -> None:
    letter = DeadLetter(stage="open", subject=streams.open_group("toy", "a", 0), reason="y", attempts=1, headers={}, body=b"", sequence=1)
    await world.bus.publish(Outgoing(streams.failed("open", "a"), letter, "another letter"))


async def lose_a_status(world: Copy) -> None:
    await world.bus.kv.delete(streams.TASKS_BUCKET, "a")


async def say_that_statuses_were_removed(world: Copy, until_s: float = 4e9) -> None:
    """Of tasks that ended by then."""
    await world.bus.kv.put(streams.HISTORY_BUCKET, sweeps.STATUSES_KEY, StatusesRemoved(until_s=until_s))


async def show_another_state_where_none_need_be(world: Copy) -> None:
    await say_that_statuses_were_removed(world)
    await put_status(world, "a", state="running")


async def lose_a_later_status_than_those_removed(world: Copy) -> None:
    await say_that_statuses_were_removed(world, until_s=1.0)
    await lose_a_status(world)


async def remove_the_status_of_an_ended_task(world: Copy) -> None:
    await say_that_statuses_were_removed(world)
    await lose_a_status(world)


async def show_an_older_version_to_users(world: Copy) -> None:
    await put_status(world, "a", version=1)


async def lose_an_adapter(world: Copy) -> None:
    [name] = [name for name in await Blobs(world.bus).names() if name.startswith("a.v1.adapter")]
    await Blobs(world.bus).delete(name)


async def lose_the_content_of_blobs(world: Copy) -> None:
    await world.bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")


async def leave_a_blob_of_a_step_taken_twice(world: Copy) -> None:
    await store(Blobs(world.bus), world.folder, "a", 1, "other bits")


async def leave_a_blob_of_an_unknown_task(world: Copy) -> None:
    await store(Blobs(world.bus), world.folder, "unknown", 1, kinds=["adapter"])


async def leave_a_blob_that_no_step_can_name(world: Copy) -> None:
    (world.folder / "strange").mkdir()
    await Blobs(world.bus).put_folder("strange", world.folder / "strange")


DIGEST = "a" * 64
WHEEL = BlobRef(name=wheel_name("acme", DIGEST), size_bytes=3, sha256=DIGEST)


async def add_a_package(world: Copy, state: str) -> None:
    await world.execute(
        "INSERT INTO packages (tenant, digest, size_bytes, state, name, version, environments)"
        f" VALUES ('acme', '{DIGEST}', 3, '{state}', 'p', '1', jsonb_build_array('e'))"
    )


async def store_a_wheel(world: Copy) -> None:
    await Blobs(world.bus).put(WHEEL, b"PK.")


async def lose_the_wheel_of_a_package(world: Copy) -> None:
    await add_a_package(world, "usable")


async def cut_the_wheel_of_a_package(world: Copy) -> None:
    await keep_a_package(world)
    await lose_the_content_of_blobs(world)


async def keep_a_package(world: Copy) -> None:
    await add_a_package(world, "usable")
    await store_a_wheel(world)


async def begin_an_upload(world: Copy) -> None:
    await add_a_package(world, "uploading")


async def check_a_package(world: Copy) -> None:
    await add_a_package(world, "checking")
    await store_a_wheel(world)
    check = CheckPackage(tenant="acme", family=OWN_FAMILY, package=DIGEST, wheel=WHEEL)
    await world.bus.publish(Outgoing(streams.check_package(OWN_FAMILY, "acme", DIGEST), check, "check of a package"))


async def change_a_digest(world: Copy) -> None:
    zeros = f"jsonb_set(adapter, '{{blob,sha256}}', '\"{'0' * 64}\"')"
    await world.execute(f"UPDATE steps SET adapter = {zeros} WHERE task = 'a' AND version = 2")


async def delete_a_task(world: Copy) -> None:
    """Insert the row of a deleted task `gone`, which has no data in NATS."""
    await world.execute(
        "INSERT INTO deleted_tasks (id, tenant, name, state, version, prompt_tokens, sampled_tokens, trained_tokens, evaluation_tokens,"
        " deleted_by, freed_bytes, submitted_at, ended_at) VALUES ('gone', 'acme', 'gone', 'finished', 3, 1, 1, 1, 0, 1, 0, now(), now())"
    )


async def announce_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    step = updated(world.made.batches[0].model_copy(update={"task": "gone"}))
    await world.bus.publish(step)


async def leave_a_dead_letter_of_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    letter = DeadLetter(
        stage="open", subject=streams.open_group("toy", "gone", 0), reason="y", attempts=1, headers={}, body=b"", sequence=1
    )
    await world.bus.publish(Outgoing(streams.failed("open", "gone"), letter, "letter about a deleted task"))


async def leave_the_status_of_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    await put_status(world, "gone", task="gone")


async def leave_a_blob_of_a_deleted_task(world: Copy) -> None:
    await delete_a_task(world)
    await store(Blobs(world.bus), world.folder, "gone", 1)


async def unbind_a_stream(world: Copy) -> None:
    await world.bus.declare((replace(streams.EVENTS, max_per_subject=-1),))


async def give_a_tenant_keys(world: Copy) -> None:
    """Without a stream for its jobs."""
    await world.execute(f"UPDATE tenants SET account = 'A{'B' * 55}' WHERE id = 'acme'")


async def keep_the_jobs_of_tenants_apart(world: Copy) -> None:
    """Also of one that is deleted, whose stream is gone."""
    await give_a_tenant_keys(world)
    await world.execute(f"INSERT INTO tenants (id, account, deleted_by, deleted_at) VALUES ('gone', 'A{'C' * 55}', 1, now())")
    await world.bus.own_jobs.declare(["acme"])


async def bound_the_bytes(world: Copy) -> None:
    await world.bus.declare(streams_bytes=10**9)


async def unbind_the_bytes_of_one_stream(world: Copy) -> None:
    await bound_the_bytes(world)
    js = world.bus.blobs_context()
    config = (await js.stream_info(streams.SCORED.name)).config
    await js.update_stream(config.evolve(max_bytes=-1))


async def drop_the_oldest_of_a_full_queue(world: Copy) -> None:
    await bound_the_bytes(world)
    js = world.bus.blobs_context()
    config = (await js.stream_info(streams.SCORED.name)).config
    await js.update_stream(config.evolve(discard="old"))


async def keep_events_for_ever(world: Copy) -> None:
    await world.bus.declare((replace(streams.EVENTS, max_age_s=0.0),))


async def refuse_a_replica_something(world: Copy, times: int = 2) -> None:
    report = ReplicaReport(replica="one", service="env", forbidden=times)
    await world.bus.kv.put(streams.REPLICAS_BUCKET, "env.one", report)


async def permit_a_replica_all(world: Copy) -> None:
    await refuse_a_replica_something(world, times=0)


VIOLATIONS: list[tuple[str, Change]] = [
    (stream_rules.HTTP_KEYS, record_an_http_key),
    (stream_rules.HTTP_KEYS, tell_of_an_http_key),
    (stream_rules.HTTP_KEYS, tell_of_another_token),
    (stream_rules.HTTP_KEYS, tell_of_a_revoked_http_key),
    (stream_rules.HTTP_KEYS, lose_an_http_key_that_will_end),
    (stream_rules.ALIASES, record_an_alias),
    (stream_rules.ALIASES, tell_of_an_older_change),
    (stream_rules.ALIASES, tell_of_another_pool),
    (stream_rules.ALIASES, tell_of_a_deleted_alias),
    (stream_rules.FAULTY, die_three_times_alike),
    (stream_rules.REFUSED, refuse_a_replica_something),
    (stream_rules.BOUNDS, unbind_a_stream),
    (stream_rules.BOUNDS, give_a_tenant_keys),
    (stream_rules.BOUNDS, keep_events_for_ever),
    (stream_rules.BOUNDS, unbind_the_bytes_of_one_stream),
    (stream_rules.BOUNDS, drop_the_oldest_of_a_full_queue),
    (stream_rules.ORPHANS, leave_a_message_of_an_ended_task),
    (stream_rules.ORPHANS, leave_a_message_of_an_unknown_task),
    (stream_rules.SCORES, lose_a_scored_message),
    (stream_rules.WEIGHTS, announce_other_weights),
    (stream_rules.ANNOUNCED, lose_an_announcement),
    (stream_rules.STATUS, show_another_state_to_users),
    (stream_rules.STATUS, lose_a_status),
    (stream_rules.STATUS, show_another_state_where_none_need_be),
    (stream_rules.STATUS, lose_a_later_status_than_those_removed),
    (stream_rules.STATUS, show_an_older_version_to_users),
    (stream_rules.LETTERS, publish_a_dead_letter_that_is_not_recorded),
    (blob_rules.MISSING, lose_an_adapter),
    (blob_rules.MISSING, lose_the_content_of_blobs),
    (blob_rules.ORPHANS, leave_a_blob_of_a_step_taken_twice),
    (blob_rules.ORPHANS, leave_a_blob_of_an_unknown_task),
    (blob_rules.ORPHANS, leave_a_blob_that_no_step_can_name),
    (blob_rules.PACKAGES, lose_the_wheel_of_a_package),
    (blob_rules.PACKAGES, cut_the_wheel_of_a_package),
    (blob_rules.PACKAGES, store_a_wheel),
    (blob_rules.DAMAGED, change_a_digest),
    (stream_rules.DELETED, announce_a_deleted_task),
    (stream_rules.DELETED, leave_a_dead_letter_of_a_deleted_task),
    (stream_rules.DELETED, leave_the_status_of_a_deleted_task),
    (blob_rules.ORPHANS, leave_a_blob_of_a_deleted_task),
]
"""(rule, change that violates it)"""


async def lose_the_announcements_of_an_ended_task(world: Copy) -> None:
    await world.bus.streams.purge(streams.WEIGHTS, "weight-updated.tiny.a")


async def announce_garbage_and_weights_of_another_task(world: Copy) -> None:
    subject = streams.weight_updated("tiny", "a")
    await world.bus.publish_raw(subject, b"garbage", "garbage", {})
    await world.bus.streams.purge(streams.WEIGHTS, subject)
    other = next(batch for batch in world.made.batches if (batch.task, batch.version) == ("live", 0))
    await world.bus.publish(replace(updated(other), subject=subject, message_id="another's"))
    await world.bus.publish_raw(subject, b"garbage", "more garbage", {})


async def publish_garbage_and_a_letter_about_a_letter(world: Copy) -> None:
    await world.bus.publish_raw(streams.failed("open", "a"), b"garbage", "garbage", {})
    letter = DeadLetter(stage="settle", subject="failed.open.a", reason="y", attempts=1, headers={}, body=b"", sequence=1)
    await world.bus.publish(Outgoing(streams.failed("settle", "a"), letter, "letter about a letter"))


SHALLOW, PATIENT = replace(QUIESCENT, deep=False), replace(QUIESCENT, grace_s=3600)
COMPLIANT: list[tuple[str, Change, Depth]] = [
    (stream_rules.HTTP_KEYS, tell_of_a_recorded_http_key, QUIESCENT),
    (stream_rules.HTTP_KEYS, forget_an_ended_http_key, QUIESCENT),
    (stream_rules.HTTP_KEYS, keep_an_ended_http_key, QUIESCENT),
    (stream_rules.HTTP_KEYS, forget_a_revoked_http_key, QUIESCENT),
    (stream_rules.ALIASES, tell_of_an_alias, QUIESCENT),
    (stream_rules.FAULTY, die_twice, QUIESCENT),
    (stream_rules.FAULTY, work_after_three_deaths, QUIESCENT),
    (stream_rules.FAULTY, begin_a_process, QUIESCENT),
    (stream_rules.REFUSED, permit_a_replica_all, QUIESCENT),
    (stream_rules.BOUNDS, bound_the_bytes, QUIESCENT),
    (stream_rules.BOUNDS, keep_the_jobs_of_tenants_apart, QUIESCENT),
    (stream_rules.ANNOUNCED, lose_the_announcements_of_an_ended_task, QUIESCENT),
    (stream_rules.STATUS, remove_the_status_of_an_ended_task, QUIESCENT),
    (stream_rules.WEIGHTS, announce_garbage_and_weights_of_another_task, QUIESCENT),
    (stream_rules.LETTERS, publish_garbage_and_a_letter_about_a_letter, QUIESCENT),
    (stream_rules.LETTERS, leave_a_dead_letter_of_a_deleted_task, QUIESCENT),
    (stream_rules.DELETED, delete_a_task, QUIESCENT),
    (blob_rules.DAMAGED, change_a_digest, SHALLOW),
    (blob_rules.DAMAGED, lose_an_adapter, QUIESCENT),
    (blob_rules.ORPHANS, leave_a_blob_of_a_step_taken_twice, PATIENT),
    (blob_rules.ORPHANS, keep_a_package, QUIESCENT),
    (blob_rules.PACKAGES, keep_a_package, QUIESCENT),
    (blob_rules.PACKAGES, begin_an_upload, QUIESCENT),
    (blob_rules.PACKAGES, store_a_wheel, PATIENT),
    (stream_rules.ORPHANS, check_a_package, QUIESCENT),
]
"""(rule, change that keeps it at this depth, depth)"""
