"""The supervisor's view of NATS: whether it stores messages, and whether its disk was full."""

import asyncio
import random
import socket
from pathlib import Path

import pytest
import structlog

from common import streams
from common.bus import Bus
from marlaas.stack import servers
from marlaas.stack.servers import FULL_BELOW_BYTES, Command, NatsDisk
from tests.marlaas.waiting import until
from tests.support.disk import BLOCK, SIZE_MIB, disk_or_skip, empty, fill
from tests.support.servers import running


def test_nats_says_whether_it_has_jetstream(tmp_path: Path) -> None:
    port, bare = servers.free_port(), servers.free_port()
    command = servers.nats_command(tmp_path / "nats", port)
    assert asyncio.run(servers.has_jetstream(port)) is None
    with running(command, port, tmp_path / "nats.log"):
        until(lambda: asyncio.run(servers.has_jetstream(port)) is True)
    with running(Command("nats", [command.argv[0], "-a", servers.HOST, "-p", str(bare)]), bare, tmp_path / "bare.log"):
        until(lambda: asyncio.run(servers.has_jetstream(bare)) is False)


def test_processes_whose_libraries_seed_randomness_alike_choose_different_ports() -> None:
    ports = set[int]()
    for _ in range(3):
        random.seed(0)
        ports.add(servers.lasting_port())
    assert len(ports) > 1


def test_store_takes_a_share_of_what_the_disk_has(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "nats"):
        (tmp_path / "nats" / servers.STORE).mkdir()
        (tmp_path / "nats" / servers.STORE / "block").write_bytes(BLOCK)
        config = Path(servers.nats_command(tmp_path / "nats", servers.free_port()).argv[-1]).read_text()
        limit = int(config.partition("max_file_store: ")[2].split()[0])
        assert 0.85 * SIZE_MIB * 2**20 < limit < 0.95 * SIZE_MIB * 2**20


@pytest.mark.parametrize("gib", [0.52, 0.55, 1, 2, 3, 4, 8, 64, 500])
def test_all_bounds_fit_into_the_store_whatever_its_size(gib: float) -> None:
    store = int(gib * 2**30)
    bounds = servers.bounds_in(store)
    assert bounds.blobs + streams.reserved_bytes(bounds.streams) + servers.SPARE_BYTES <= store
    assert bounds.blobs >= servers.MIN_BLOBS_BYTES


def test_disk_without_room_for_messages_is_refused_with_one_sentence(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "data"):
        assert servers.room_objection(tmp_path / "data" / "nats") is None
        (tmp_path / "data" / "other").write_bytes(bytes(200 * 2**20))
        objection = servers.room_objection(tmp_path / "data" / "nats") or ""
        assert "MiB are left for NATS, which is 90% of the free space" in objection
        assert objection.endswith("messages and adapters need 528 MiB: free some, or name a folder elsewhere with --data")


def declared(folder: Path) -> list[str]:
    """Events of a declaration within the bounds for the disk of `folder`, with NATS started there as `marlaas up` does."""

    async def declare() -> None:
        async with await Bus.connect(servers.nats_url(port), "test") as bus:
            await bus.declare(blobs_bytes=bounds.blobs, streams_bytes=bounds.streams)

    port, bounds = servers.free_port(), servers.bounds(folder)
    with (
        running(servers.nats_command(folder, port, sync="1s"), port, folder.parent / "nats.log"),
        structlog.testing.capture_logs() as logs,
    ):
        asyncio.run(asyncio.wait_for(declare(), 60))
    return [entry["event"] for entry in logs if entry["log_level"] in ("warning", "error")]


def max_store(folder: Path) -> int:
    return int((folder / "nats.conf").read_text().partition("max_file_store: ")[2].split()[0])


def test_bounds_follow_a_disk_that_has_less_room_at_a_later_start(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / "data", mib=1_200):
        folder = tmp_path / "data" / "nats"
        assert declared(folder) == []
        first = max_store(folder)
        (tmp_path / "data" / "other").write_bytes(bytes(300 * 2**20))
        assert declared(folder) == []
        assert first - 40 * 2**20 < max_store(folder) <= first, "room for what streams had reserved, or NATS changes none of them"
        assert declared(folder) == []
        assert max_store(folder) < first - 200 * 2**20, "once they reserve less"


def test_streams_that_reserve_more_than_nats_may_store_are_named_and_used(tmp_path: Path) -> None:
    """As with containers, whose `max_file_store` the operator writes."""
    folder = tmp_path / "nats"
    assert declared(folder) == []
    port = servers.free_port()
    command = servers.nats_command(folder, port, sync="1s")
    config = Path(command.argv[-1])
    config.write_text(config.read_text().replace(f"max_file_store: {max_store(folder)}", "max_file_store: 1GB"))

    async def declare() -> None:
        async with await Bus.connect(servers.nats_url(port), "test") as bus:
            await bus.declare(blobs_bytes=10**8, streams_bytes=10**8)

    with running(command, port, tmp_path / "nats.log"), structlog.testing.capture_logs() as logs:
        asyncio.run(asyncio.wait_for(declare(), 60))
    named = [entry["stream"] for entry in logs if entry["event"] == "stream_not_updated"]
    assert sorted(named) == sorted(stream.name for stream in streams.STREAMS)
    assert {entry["event"] for entry in logs} == {"stream_not_updated", "streams_not_bounded", "blobs_not_bounded"}


def test_disk_that_was_full_and_has_room_is_reported_once(tmp_path: Path) -> None:
    with disk_or_skip(tmp_path / servers.STORE):
        disk = NatsDisk(tmp_path)
        assert not disk.has_recovered()
        fill(tmp_path / servers.STORE)
        assert not disk.has_recovered()
        empty(tmp_path / servers.STORE)
        assert [disk.has_recovered() for _ in range(2)] == [True, False]
        assert FULL_BELOW_BYTES < SIZE_MIB * 2**20


def test_log_of_refusals_is_bounded(tmp_path: Path) -> None:
    port, log = servers.free_port(), tmp_path / "logs" / "nats.log"
    log.parent.mkdir()
    wants_password = 'authorization { user: "a", password: "b" }\n'
    command = servers.nats_command(tmp_path / "nats", port, sync="1s", accounts=wants_password, log=log, log_bytes=20_000)
    with running(command, port, tmp_path / "stderr.log"):
        for _ in range(2_000):
            with socket.create_connection((servers.HOST, port)) as stranger:
                stranger.sendall(b'CONNECT {"user":"a","pass":"wrong","verbose":false}\r\nPING\r\n')
                while stranger.recv(4096):
                    pass
    files = list(log.parent.iterdir())
    refusals = sum(path.read_text().count("authentication error") for path in files)
    assert 0 < refusals < 2_000, "the oldest are deleted"
    assert len(files) <= servers.NATS_LOG_FILES + 1
    assert sum(path.stat().st_size for path in files) <= (servers.NATS_LOG_FILES + 1) * 21_000
