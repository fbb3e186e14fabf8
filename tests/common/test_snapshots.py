"""Streams that are saved and restored: into a cluster, and into the account of a server with keys."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from common import streams
from common.access.folder import issue_service_keys, open_or_make, server_configuration
from common.access.services import Deployment
from common.blobs import Blobs
from common.bus import Bus, Outgoing, Slots
from common.bus.stored.snapshots import send_part
from common.client_api.errors import ClientError
from common.errors import Forbidden, Reject
from common.messages import BlobRef, ControlTask, TaskStatus
from marlaas.stack import servers
from marlaas.tenancy.stored_streams import connected, restore, save
from tests.common.cluster import NODES, Cluster, running_cluster
from tests.support.servers import running
from tests.support.waiting import at_work, eventually

JOBS, TAKEN = 50, 10
CONSUMER = streams.scheduler_jobs("acme")


def status(version: int) -> TaskStatus:
    return TaskStatus(
        task="a", tenant="acme", name="a", pool="tiny", state="running", version=version, steps=9, submitted_s=1.0, updated_s=2.0
    )


async def fill(bus: Bus, folder: Path) -> BlobRef:
    """Jobs of which some were taken, a value that was changed, and a blob of several chunks."""
    await bus.declare()
    for number in range(JOBS):
        message = ControlTask(task=f"t{number}", tenant="acme")
        await bus.publish(Outgoing(streams.job("pause", "acme"), message, f"job{number}"))
    taken: list[str] = []

    async def take(delivery: object) -> AsyncIterator[Outgoing]:
        if len(taken) == TAKEN:
            await asyncio.Event().wait()
        taken.append("")
        return
        yield

    async with at_work(bus.consume(CONSUMER, take, Slots(1))):
        await eventually(lambda: len(taken) == TAKEN)
        await eventually(lambda: _has(bus, JOBS - TAKEN))
    for version in (1, 2):
        await bus.kv.put(streams.TASKS_BUCKET, "a", status(version))
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(3_000_000))
    return await Blobs(bus).put_folder("a.v1.adapter", folder)


async def _has(bus: Bus, jobs: int) -> bool:
    return sum((await bus.streams.subjects(streams.JOBS)).values()) == jobs


async def check(bus: Bus, blob: BlobRef, folder: Path) -> None:
    """Everything is there, and a job that was stored before is a duplicate still."""
    assert await _has(bus, JOBS - TAKEN)
    found = await bus.kv.get(streams.TASKS_BUCKET, "a", TaskStatus)
    assert found == status(2)
    fetched = await Blobs(bus).fetch_folder(blob, folder)
    assert (fetched / "weights").stat().st_size == 3_000_000


async def saved(bus: Bus, folder: Path) -> dict[str, object]:
    return {stream: snapshot.messages async for stream, snapshot in save(bus, folder)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as cluster:
        for node in range(NODES):
            cluster.start(node)
        yield cluster


@asynccontextmanager
async def server(folder: Path, accounts: str = "") -> AsyncGenerator[str]:
    port = servers.free_port()
    folder.mkdir(exist_ok=True)
    with running(servers.nats_command(folder / "nats", port, accounts=accounts), port, folder / "nats.log"):
        yield servers.nats_url(port)


@pytest.mark.slow
async def test_single_server_becomes_a_cluster(bus: Bus, cluster: Cluster, tmp_path: Path) -> None:
    blob = await fill(bus, tmp_path / "made")
    before = await saved(bus, tmp_path / "saved")
    assert before["JOBS"] == JOBS - TAKEN and f"KV_{streams.TASKS_BUCKET}" in before
    async with await Bus.connect(cluster.url, "test") as many:
        await many.retry_until_ready(many.snapshots.names)
        restored = [one async for one in restore(many, tmp_path / "saved", replicas=NODES)]
        assert all(was_absent for _, _, was_absent in restored)
        repeated = [one async for one in restore(many, tmp_path / "saved", replicas=NODES)]
        assert not any(was_absent for _, _, was_absent in repeated)
        await many.declare(replicas=NODES)
        await check(many, blob, tmp_path / "fetched")
    await cluster.caught_up()
    cluster.kill(0)
    async with await Bus.connect(cluster.url, "test") as two:

        async def is_whole() -> bool:  # once a leader is elected
            await check(two, blob, tmp_path / "fetched-later")
            return True

        await eventually(is_whole, 120)


async def test_cluster_becomes_the_account_of_a_server_with_keys(cluster: Cluster, tmp_path: Path) -> None:
    async with await Bus.connect(cluster.url, "test") as many:
        blob = await fill(many, tmp_path / "made")
        await saved(many, tmp_path / "saved")
    keys = open_or_make(tmp_path / "keys")
    issue_service_keys(keys, Deployment(pools=("tiny",), families=("toy",)))
    async with server(tmp_path / "keyed", server_configuration(keys, tmp_path / "accounts")) as url:
        async with connected(url, keys) as bus:
            assert [stream async for stream, _, _ in restore(bus, tmp_path / "saved", replicas=1)]
            with pytest.raises(Forbidden):
                await bus.snapshots._api("$JS.API.STREAM.DELETE.JOBS", None, "delete a stream")
        assert not list(keys.folder.glob("stored-streams*")), "the key ends with the command"
        async with await Bus.connect(url, "scheduler", creds=keys.credentials("scheduler")) as bus:
            await bus.declare()
            await check(bus, blob, tmp_path / "fetched")


async def test_wrong_folder_is_named_and_changes_nothing(bus: Bus, tmp_path: Path) -> None:
    await fill(bus, tmp_path / "made")
    folder = tmp_path / "saved"
    with pytest.raises(ClientError, match="no saved streams"):
        [one async for one in restore(bus, folder, replicas=None)]
    await saved(bus, folder)
    with pytest.raises(ClientError, match="is not empty"):
        await saved(bus, folder)
    async with server(tmp_path / "other") as url, await Bus.connect(url, "test") as other:
        snapshot = folder / "JOBS.snapshot"
        whole = snapshot.read_bytes()
        for damaged in (whole[:-1], b"x" + whole[1:]):
            snapshot.write_bytes(damaged)
            with pytest.raises(Reject, match=r"JOBS\.snapshot is damaged"):
                [one async for one in restore(other, folder, replicas=None)]
        snapshot.write_bytes(whole)
        about = folder / "JOBS.json"
        described = json.loads(about.read_text())
        about.unlink()
        with pytest.raises(ClientError, match="not complete: saving ended at JOBS"):
            [one async for one in restore(other, folder, replicas=None)]
        about.write_text(json.dumps(described))
        await other.declare()
        await other.publish(Outgoing(streams.job("pause", "acme"), ControlTask(task="new", tenant="acme"), "new"))
        with pytest.raises(Reject, match="there already"):
            [one async for one in restore(other, folder, replicas=None)]
        assert await _has(other, 1)


async def test_part_is_sent_again_until_the_restoring_server_is_known(nats_url: str) -> None:
    sender, restorer = await nats.connect(nats_url), await nats.connect(nats_url)
    sending = asyncio.create_task(send_part(sender, "restore.parts", b"part"))
    await asyncio.sleep(0.3)  # it has had "no responders" by now

    async def take(message: Msg) -> None:
        await message.respond(message.data)

    await restorer.subscribe("restore.parts", cb=take)
    assert (await asyncio.wait_for(sending, 60)).data == b"part"
    await sender.close()
    await restorer.close()
