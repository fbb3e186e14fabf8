"""A cluster of three NATS nodes, killed one at a time under the bus: nothing is lost, and nothing has its effect twice."""

import asyncio
import filecmp
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.bus.transport.timings import Timings
from common.messages import ControlTask, HistoryMark, SubmitTask
from common.streams import BLOBS_BUCKET, BUCKETS, HISTORY_BUCKET, STREAMS
from tests.common.cluster import NODES, Cluster, running_cluster
from tests.support.consuming import consuming, drained, job
from tests.support.waiting import at_work, eventually

T = TypeVar("T")
JOBS = replace(streams.scheduler_jobs("acme"), ack_wait_s=5.0)
MORE = 50
"""Messages that must come through after each event."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def whole(cluster: Cluster) -> Cluster:
    """The cluster with all of its nodes."""
    for node in range(NODES):
        cluster.start(node)
    return cluster


@asynccontextmanager
async def connected(cluster: Cluster, name: str) -> AsyncIterator[Bus]:
    async with await Bus.connect(cluster.url, name, timings=Timings(publish_patience_s=240.0)) as bus:
        await bus.declare(replicas=NODES)
        yield bus


async def test_everything_is_declared_with_as_many_copies_and_never_with_fewer(cluster: Cluster) -> None:
    stored = [*(stream.name for stream in STREAMS), *(f"KV_{bucket.name}" for bucket in BUCKETS), f"OBJ_{BLOBS_BUCKET}"]

    async def copies(bus: Bus) -> set[int | None]:
        return {(await bus.blobs_context().stream_info(name)).config.num_replicas for name in stored}

    for node in range(NODES - 1):
        cluster.start(node)
    bus = await Bus.connect(cluster.url, "test")
    await bus.declare()
    assert await copies(bus) == {1}
    with capture_logs() as logs:
        declaring = asyncio.create_task(bus.declare(replicas=NODES))
        await eventually(lambda: declaring.done() or len([line for line in logs if line["event"] == "jetstream_not_ready"]) > 3)
        assert not declaring.done()  # it waits for the third node, and says so
    cluster.start(NODES - 1)
    await declaring
    assert await copies(bus) == {NODES}
    await bus.declare()
    assert await copies(bus) == {NODES}
    await bus.close()


async def test_nodes_are_killed_one_at_a_time_and_every_message_has_its_effect_once(whole: Cluster) -> None:
    published = 0
    handled: set[str] = set()
    enough = asyncio.Event()

    async def handler(delivery: Delivery) -> AsyncIterator[Outgoing]:
        task = delivery.read(SubmitTask).task
        yield Outgoing(streams.checked(task), ControlTask(task=task, tenant="acme"), f"checked:{task}")
        handled.add(task)

    async def publish(bus: Bus) -> None:
        nonlocal published
        while not enough.is_set():
            await bus.publish(job(f"t{published}"))
            published += 1

    async def more_come_through() -> None:
        """Wait for messages that are published from now on."""
        first = published
        await eventually(lambda: published > first + MORE and f"t{first + MORE}" in handled)

    async with connected(whole, "sender") as sender, connected(whole, "worker") as worker, consuming(worker, handler, 8, JOBS):
        publishing = asyncio.create_task(publish(sender))
        await more_come_through()
        for node in range(NODES):
            await whole.caught_up()
            whole.kill(node)
            await more_come_through()
            whole.start(node)
        enough.set()
        await publishing
        await whole.caught_up()
        await drained(worker)
        effects = await worker.retry_until_ready(lambda: worker.streams.subjects(streams.TURNS))
    assert effects == {streams.checked(f"t{number}"): 1 for number in range(published)}


@pytest.mark.slow
async def test_followers_values_and_blobs_outlive_each_node(whole: Cluster, tmp_path: Path) -> None:
    followed: list[str] = []
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_bytes(bytes(range(256)) * 50_000)

    async def follow(bus: Bus) -> None:
        async for delivery in bus.streams.follow(streams.EVENTS, "events.>"):
            followed.append(delivery.read(ControlTask).task)

    async with connected(whole, "test") as bus, at_work(follow(bus)):
        blob = await Blobs(bus).put_folder("adapter", tmp_path / "adapter")
        for node in range(NODES):
            await whole.caught_up()
            await bus.kv.put(HISTORY_BUCKET, "mark", HistoryMark(deployment="ours", position=node))
            whole.kill(node)
            await bus.publish(Outgoing(streams.events("acme", "a"), ControlTask(task=f"t{node}", tenant="acme"), f"event:{node}"))
            await eventually(lambda node=node: f"t{node}" in followed)
            assert await bus.retry_until_ready(lambda: bus.kv.get(HISTORY_BUCKET, "mark", HistoryMark)) == HistoryMark(
                deployment="ours", position=node
            )
            fetched = await bus.retry_until_ready(lambda node=node: Blobs(bus).fetch_folder(blob, tmp_path / f"fetched-{node}"))
            assert filecmp.cmp(fetched / "weights", tmp_path / "adapter" / "weights", shallow=False)
            whole.start(node)
    assert followed == [f"t{node}" for node in range(NODES)]
