"""Requests to versions outlive their task's end, and neither its deletion nor their deadline; real NATS and PostgreSQL."""

from common import streams
from common.bus import Bus, Outgoing
from common.messages import AdapterRef, BlobRef, Canary, ServedSampling, ServeRequest
from scheduler_svc.doctor.stream_rules import ORPHANS
from tests.support.scheduler.finished import broken_rules
from tests.support.scheduler.stages import Stages, running_world
from tests.support.waiting import eventually_equals

BLOB = BlobRef(name="a.v1.adapter-0", size_bytes=1, sha256="0" * 64)


def request(bus: Bus, name: str, task: str | None, left_s: float = 600.0) -> Outgoing:
    adapter = AdapterRef(task=task, version=1, rank=8, blob=BLOB, canary=Canary(ids=b"", logprobs=b"")) if task else None
    message = ServeRequest(
        request=name,
        attempt=0,
        gateway="g",
        tenant="acme",
        key=None,
        pool="tiny",
        adapter=adapter,
        text="hello",
        sampling=ServedSampling(max_tokens=1, seed=1),
        first_token_by_s=bus.clock.now_s() + left_s,
    )
    return Outgoing(streams.serve("tiny", task, name), message, name)


async def served(bus: Bus) -> set[str]:
    return {subject.rpartition(".")[2] for subject in await bus.streams.subjects(streams.REQUESTS, "prompts.serve.>")}


async def test_sweep_keeps_requests_to_versions_of_ended_tasks(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages()) as world:
        await world.run("a")
        for each in (request(bus, "ended", "a"), request(bus, "base", None), request(bus, "late", "a", -1), request(bus, "odd", "unknown")):
            await bus.publish(each)
        await bus.publish_raw(streams.serve("tiny", "a", "garbage"), b"{}", "garbage", {})
        await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]
        assert await served(bus) == {"ended", "base", "odd"}
        assert ORPHANS not in "".join(map(str, await broken_rules(world)))


async def test_cancelled_task_is_still_served_and_a_deleted_one_is_not(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, Stages(withheld=lambda group, member: True)) as world:
        await world.begin("a", opened=4)
        await bus.publish(request(bus, "first", "a"))
        await bus.publish(request(bus, "other", "b"))
        await world.control("cancel", "a", until="cancelled")
        await eventually_equals(lambda: bus.streams.subjects(streams.PROMPTS, "prompts.open.>"), {})
        assert await served(bus) == {"first", "other"}
        await world.control("delete", "a", until="deleted")
        assert await served(bus) == {"other"}
        await bus.publish(request(bus, "second", "a"))
        await world.scheduler._collector.sweep()  # pyright: ignore[reportPrivateUsage]
        assert await served(bus) == {"other"}
