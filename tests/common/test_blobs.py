"""The blob store: complete or absent, checked, never replaced."""

import asyncio
from pathlib import Path

import pytest

from common.backoff import Backoff
from common.blobs import Blobs, fetch_timeout_s
from common.bus import Bus
from common.bus.timings import Timings
from common.errors import Reject, Unavailable
from common.messages import BlobRef
from common.streams import Stream
from marlaas.stack import servers
from tests.chaos.proxy import Wire
from tests.conftest import eventually


@pytest.fixture(params=[400, 40_000], ids=["one chunk", "three chunks"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return _folder(tmp_path, request.param)


@pytest.fixture
def large_folder(tmp_path: Path) -> Path:
    return _folder(tmp_path, 40_000)


def _folder(tmp_path: Path, quarter_kib: int) -> Path:
    folder = tmp_path / "adapter"
    (folder / "inner").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(256)) * quarter_kib)
    (folder / "inner" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def blobs(bus: Bus) -> Blobs:
    return Blobs(bus)


@pytest.fixture
async def ref(blobs: Blobs, folder: Path) -> BlobRef:
    """The stored folder."""
    return await blobs.put_folder("task/v1/adapter", folder)


async def test_folder_comes_back_as_it_was(blobs: Blobs, ref: BlobRef, folder: Path, tmp_path: Path) -> None:
    fetched = await blobs.fetch_folder(ref, tmp_path / "fetched")
    assert (fetched / "weights.bin").read_bytes() == (folder / "weights.bin").read_bytes()
    assert (fetched / "inner" / "config.json").read_text() == "{}"


async def test_same_content_has_the_same_reference_and_other_content_another(blobs: Blobs, ref: BlobRef, folder: Path) -> None:
    assert await blobs.put_folder("task/v1/adapter", folder) == ref
    (folder / "weights.bin").write_bytes(b"other")
    second = await blobs.put_folder("task/v1/adapter", folder)
    assert second.name != ref.name
    assert sorted(await blobs.names()) == sorted([ref.name, second.name])


async def test_damaged_copy_is_refused_and_leaves_nothing(blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    with pytest.raises(Reject, match="damaged"):
        await blobs.fetch_folder(ref.model_copy(update={"sha256": "0" * 64}), tmp_path / "fetched")
    assert not list(tmp_path.glob("fetched*"))


async def test_disk_that_does_not_take_a_blob_is_named_and_waited_for(blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    (tmp_path / "place").touch()
    with pytest.raises(Unavailable, match=f"could not write blob .* to {tmp_path}/place/fetched: .*Not a directory"):
        await blobs.fetch_folder(ref, tmp_path / "place" / "fetched")
    (tmp_path / "place").unlink()
    assert (await blobs.fetch_folder(ref, tmp_path / "place" / "fetched")).is_dir()


async def test_missing_blob_is_named(blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    await blobs.delete(ref.name)
    await blobs.delete(ref.name)
    with pytest.raises(Reject, match=ref.name):
        await blobs.fetch_folder(ref, tmp_path / "fetched")


async def test_blob_that_lost_its_content_is_noticed_and_restored(
    bus: Bus, blobs: Blobs, ref: BlobRef, folder: Path, tmp_path: Path
) -> None:
    await bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")
    assert [(blob.name, blob.is_whole) for blob in await blobs.listed()] == [(ref.name, False)]
    assert await blobs.put_folder("task/v1/adapter", folder) == ref
    assert [(blob.name, blob.is_whole) for blob in await blobs.listed()] == [(ref.name, True)]
    await blobs.fetch_folder(ref, tmp_path / "fetched")


async def test_deleted_blob_is_not_listed(blobs: Blobs, ref: BlobRef) -> None:
    await blobs.delete(ref.name)
    assert await blobs.names() == []


async def test_listing_ends_beside_deletions(bus: Bus, tmp_path: Path) -> None:
    folder, blobs = _folder(tmp_path, 1), Blobs(bus, silence_s=0.2)
    for _ in range(5):
        ref = await blobs.put_folder("task/v1/adapter", folder)
        async with asyncio.timeout(20):
            await asyncio.gather(blobs.listed(), blobs.delete(ref.name))
    assert await blobs.names() == []


async def test_concurrent_fetches_do_not_disturb_each_other(blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    await asyncio.gather(*(blobs.fetch_folder(ref, tmp_path / "fetched") for _ in range(4)))
    assert [path.name for path in tmp_path.glob("fetched*")] == ["fetched"]


async def test_blob_whose_content_is_gone_is_refused_and_not_waited_for(bus: Bus, blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    await bus.blobs_context().purge_stream("OBJ_blobs", subject="$O.blobs.C.>")
    with pytest.raises(Reject, match="not all of it"):
        await blobs.fetch_folder(ref, tmp_path / "fetched")


async def test_blob_that_was_cut_off_while_it_was_stored_is_absent_and_can_be_stored(nats_url: str, bus: Bus, large_folder: Path) -> None:
    async with Wire("blobs", int(nats_url.rpartition(":")[2])).listening() as wire:
        timings = Timings(answer_timeout_s=1.0, reconnect_s=0.1, backoff=Backoff(0.1, 3.2))
        async with await Bus.connect(servers.nats_url(wire.port), "behind the wire", timings=timings) as behind:
            wire.bytes_per_s = 1.6e7
            storing = asyncio.create_task(Blobs(behind).put_folder("task/v1/adapter", large_folder))
            await eventually(lambda: bus.streams.backlog(Stream("OBJ_blobs", ())))
            wire.refuses = True
            wire.cut()
            with pytest.raises(Unavailable):
                await storing
            assert [blob for blob in await Blobs(bus).listed() if blob.is_whole] == []
            wire.mend()
            await eventually(lambda: behind.is_connected)
            ref = await Blobs(behind).put_folder("task/v1/adapter", large_folder)
            assert [(blob.name, blob.is_whole) for blob in await Blobs(bus).listed()] == [(ref.name, True)]


def test_large_blob_may_take_longer() -> None:
    assert fetch_timeout_s(1024) == pytest.approx(120, abs=0.1)
    assert fetch_timeout_s(2 * 2**30) == 120 + 2048
