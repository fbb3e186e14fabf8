"""The bucket of statuses has a bound: those of tasks that ended first make room, and live tasks keep theirs."""

import pytest

from common import streams
from common.bus import Bus
from common.errors import Reject, StreamFull
from common.messages import ReplicaReport, StatusesRemoved, TaskStatus
from scheduler_svc.base.database import Database
from scheduler_svc.doctor.runner import examine
from scheduler_svc.doctor.stream_rules import STATUS
from scheduler_svc.upkeep.deletion.sweeps import STATUSES_KEY, make_room_for_statuses
from tests.support.scheduler.finished import QUIESCENT
from tests.support.scheduler.stages import Stages, running_world, spec

TASKS = streams.TASKS_BUCKET


async def config_of(bus: Bus, bucket: streams.Bucket):  # type: ignore[no-untyped-def]
    return (await bus.blobs_context().stream_info(f"KV_{bucket.name}")).config


async def test_every_bucket_has_its_share_and_the_largest_value(bus: Bus) -> None:
    await bus.declare(streams_bytes=10**9)
    for bucket in streams.BUCKETS:
        found = await config_of(bus, bucket)
        assert found.max_bytes == max(int(10**9 * bucket.share), streams.MIN_BUCKET_BYTES)
        assert (found.max_msg_size, found.max_msgs_per_subject) == (2 * 2**20, 1)
    await bus.declare(streams_bytes=2 * 10**9)
    assert (await config_of(bus, streams.TASKS)).max_bytes == int(2 * 10**9 * streams.TASKS.share), "settable"
    assert await bus.declarations.differences([], streams.BUCKETS) == {f"KV_{bucket.name}": [] for bucket in streams.BUCKETS}


async def test_a_bucket_of_an_older_version_is_bounded_and_keeps_its_values(bus: Bus) -> None:
    context = bus.blobs_context()
    status = ReplicaReport(replica="a", service="env")
    for bucket in streams.BUCKETS:
        found = await config_of(bus, bucket)
        await context.update_stream(found.evolve(max_msg_size=-1, max_bytes=-1))
        await bus.kv.put(bucket.name, "a", status)
    await bus.declare(streams_bytes=10**9)
    assert (await config_of(bus, streams.HISTORY)).max_bytes == streams.MIN_BUCKET_BYTES
    assert (await config_of(bus, streams.HISTORY)).max_msg_size == 2 * 2**20
    assert await bus.kv.values(streams.HISTORY_BUCKET, ReplicaReport) == [status]


async def test_a_full_bucket_refuses_new_keys_and_takes_new_values_of_its_own(bus: Bus) -> None:
    await bus.declare(streams_bytes=1)
    subject = streams.value_subject(TASKS, "a{}")
    for number in range(4):
        await bus.publish_raw(subject.format(number), bytes(1_990_000), f"{number}", {})
    with pytest.raises(StreamFull):
        await bus.publish_raw(subject.format(4), bytes(1_990_000), "4", {})
    await bus.publish_raw(subject.format(0), bytes(1_900_000), "5", {})
    with pytest.raises(Reject, match="larger than its stream takes"):
        await bus.publish_raw(subject.format(5), bytes(2_200_000), "6", {})


async def test_statuses_of_the_tasks_that_ended_first_make_room(bus: Bus, database_url: str) -> None:
    await bus.declare(streams_bytes=1)
    for number in range(3):
        await bus.publish_raw(streams.value_subject(TASKS, f"filled-{number}"), bytes(1_990_000), f"{number}", {})
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: group.task == "live")) as world:
        for task in ("first", "second", "third"):
            await world.run(task, spec(steps=1))
        await world.run("live", until="accepted")
    # Without the scheduler, which makes room by itself.
    async with await Database.connect(database_url) as database:
        assert await make_room_for_statuses(database, bus) == 0, "there is room"
        size = (await bus.blobs_context().stream_info("KV_tasks")).config.max_bytes or 0
        used = (await bus.blobs_context().stream_info("KV_tasks")).state.bytes
        await bus.publish_raw(streams.value_subject(TASKS, "more"), bytes(int(0.81 * size) - used), "more", {})
        assert await make_room_for_statuses(database, bus, batch=2) == 3
        shown = {task for task in ("first", "second", "third", "live") if await bus.kv.get(TASKS, task, TaskStatus)}
        assert shown == {"live"}
        assert await bus.kv.get(streams.HISTORY_BUCKET, STATUSES_KEY, StatusesRemoved) is not None
        assert [one for one in await examine(database, bus, QUIESCENT) if one.rule == STATUS] == []
        await bus.kv.remove(streams.HISTORY_BUCKET, [STATUSES_KEY])
        assert len([one for one in await examine(database, bus, QUIESCENT) if one.rule == STATUS]) == 3
