"""What a watcher is not told of, a reading finds: entries that are lost without a marker, and a bucket that is made again."""

from common import streams
from common.bus import Bus
from common.leases import PoolClocks
from common.messages import PoolClock, TaskStatus
from common.task_states import TaskStates
from tests.support.waiting import at_work, eventually


def status(task: str, state: str) -> TaskStatus:
    return TaskStatus(tenant="acme", task=task, name=task, pool="tiny", state=state, version=1, steps=1, submitted_s=0, updated_s=0)


async def made_again(bus: Bus, bucket: str) -> None:
    js = bus._connection.js
    config = (await js.stream_info(f"KV_{bucket}")).config
    await js.delete_stream(f"KV_{bucket}")
    await js.add_stream(config)


async def test_clock_whose_entry_is_lost_goes_on(bus: Bus) -> None:
    await bus.kv.put(streams.CLOCKS_BUCKET, "one", PoolClock(parked_s=50.0))
    clocks = PoolClocks(bus, reread_s=0.2)
    await clocks.read()
    assert bus.clock.now_s() - clocks.now_s("one") > 49
    async with at_work(clocks.follow()):
        await bus.kv.remove(streams.CLOCKS_BUCKET, ["one"])
        await eventually(lambda: bus.clock.now_s() - clocks.now_s("one") < 1)


async def test_task_that_ends_after_its_bucket_was_made_again_has_ended(bus: Bus) -> None:
    tasks, ended = TaskStates(), list[str]()
    await bus.kv.put(streams.TASKS_BUCKET, "over", status("over", "finished"))
    async with at_work(tasks.follow(bus, ended.append, reread_s=0.2)):
        await bus.kv.put(streams.TASKS_BUCKET, "a", status("a", "running"))
        await eventually(lambda: tasks.is_live("a"))
        await made_again(bus, streams.TASKS_BUCKET)
        await bus.kv.put(streams.TASKS_BUCKET, "a", status("a", "cancelled"))
        await eventually(lambda: tasks.has_ended("a"))
    assert tasks.has_ended("over"), "one that is deleted stays ended"
    assert ended == ["over", "a"]
