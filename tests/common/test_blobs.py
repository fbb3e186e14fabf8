"""The blob store: complete or absent, checked, never replaced."""

import asyncio
import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from pydantic import ValidationError

from common.blobs import Blobs, fetch_timeout_s
from common.bus import Bus
from common.bus.transport.timings import Timings
from common.errors import Reject, Unavailable
from common.messages import BlobRef
from common.resilience.backoff import Backoff
from common.streams import BLOBS_BUCKET, Stream
from marlaas.stack import servers
from tests.support.proxy import Wire
from tests.support.waiting import eventually


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
    return await blobs.put_folder("task.v1.adapter", folder)


async def test_folder_comes_back_as_it_was(blobs: Blobs, ref: BlobRef, folder: Path, tmp_path: Path) -> None:
    fetched = await blobs.fetch_folder(ref, tmp_path / "fetched")
    assert (fetched / "weights.bin").read_bytes() == (folder / "weights.bin").read_bytes()
    assert (fetched / "inner" / "config.json").read_text() == "{}"


async def test_same_content_has_the_same_reference_and_other_content_another(blobs: Blobs, ref: BlobRef, folder: Path) -> None:
    assert await blobs.put_folder("task.v1.adapter", folder) == ref
    (folder / "weights.bin").write_bytes(b"other")
    second = await blobs.put_folder("task.v1.adapter", folder)
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
    assert await blobs.put_folder("task.v1.adapter", folder) == ref
    assert [(blob.name, blob.is_whole) for blob in await blobs.listed()] == [(ref.name, True)]
    await blobs.fetch_folder(ref, tmp_path / "fetched")


async def test_deleted_blob_is_not_listed(blobs: Blobs, ref: BlobRef) -> None:
    await blobs.delete(ref.name)
    assert await blobs.names() == []


async def test_listing_ends_beside_deletions(bus: Bus, tmp_path: Path) -> None:
    folder, blobs = _folder(tmp_path, 1), Blobs(bus, silence_s=0.2)
    for _ in range(5):
        ref = await blobs.put_folder("task.v1.adapter", folder)
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
            storing = asyncio.create_task(Blobs(behind).put_folder("task.v1.adapter", large_folder))
            await eventually(lambda: bus.streams.backlog(Stream("OBJ_blobs", ())))
            wire.refuses = True
            wire.cut()
            with pytest.raises(Unavailable):
                await storing
            assert [blob for blob in await Blobs(bus).listed() if blob.is_whole] == []
            wire.mend()
            await eventually(lambda: behind.is_connected)
            ref = await Blobs(bus).put_folder("task.v1.adapter", large_folder)  # which waits longer for answers
            assert [(blob.name, blob.is_whole) for blob in await Blobs(bus).listed()] == [(ref.name, True)]


# ------------------------------------------------------------------------------------------------- blobs of a stranger


def archive(*entries: tuple[str, bytes] | tarfile.TarInfo, mode: Literal["w", "w:gz"] = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                tar.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                tar.addfile(info, io.BytesIO(entry[1]))
    return buffer.getvalue()


def link(kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, target
    return info


def sparse(size: int) -> bytes:
    """An old GNU sparse file of `size` bytes of which one is stored."""
    info = tarfile.TarInfo("sparse")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 1
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0%011o\0" % (size - 1, 1)
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + b"x".ljust(512, b"\0") + bytes(1024)


HOSTILE = {
    "compressed": (archive(("zeros", bytes(10**7)), mode="w:gz"), "no archive"),
    "sparse": (sparse(10**7), "not a plain file"),
    "absolute": (archive(("/tmp/marlaas-stranger", b"x")), "not a plain file inside it"),
    "upward": (archive(("a/../../stranger", b"x")), "not a plain file inside it"),
    "upward but inside": (archive(("a/../b", b"x")), "not a plain file inside it"),
    "without a name": (archive((".", b"x")), "not a plain file inside it"),
    "long name": (archive(("n" * 300, b"x")), "not a plain file inside it"),
    "symbolic link": (archive(link(tarfile.SYMTYPE, "/etc/passwd")), "not a plain file inside it"),
    "hard link": (archive(("a", b"x"), link(tarfile.LNKTYPE, "a")), "not a plain file inside it"),
    "device": (archive(link(tarfile.CHRTYPE, "")), "not a plain file inside it"),
    "file twice": (archive(("a", b"x"), ("a", b"y")), "twice"),
    "file as a folder": (archive(("a", b"x"), ("a/b", b"y")), "twice"),
    "folder as a file": (archive(("a/b", b"x"), ("a", b"y")), "twice"),
    "many files": (archive(*((f"{number}", b"") for number in range(10_001))), "more than 10000 files"),
    "cut off": (archive(("a", b"x" * 2000))[:1024], "more bytes than it has"),
    "garbage": (b"garbage" * 200, "no archive"),
}


async def stored(bus: Bus, content: bytes) -> BlobRef:
    """A blob as a client without scruples stores it."""
    digest = hashlib.sha256(content).hexdigest()
    await (await bus.blobs_context().object_store(BLOBS_BUCKET)).put("a.v1.adapter-0", content)
    return BlobRef(name="a.v1.adapter-0", size_bytes=len(content), sha256=digest)


@pytest.mark.parametrize("kind", HOSTILE)
async def test_blob_that_is_no_archive_of_plain_files_is_refused_and_leaves_nothing(
    bus: Bus, blobs: Blobs, kind: str, tmp_path: Path
) -> None:
    content, reason = HOSTILE[kind]
    with pytest.raises(Reject, match=reason):
        await blobs.fetch_folder(await stored(bus, content), tmp_path / "in" / "fetched")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name != "in" and "nats" not in str(path)) == []


async def test_blob_of_another_size_than_announced_is_not_fetched(bus: Bus, blobs: Blobs, ref: BlobRef, tmp_path: Path) -> None:
    for size_bytes in (ref.size_bytes - 1, ref.size_bytes + 1):
        with pytest.raises(Reject, match=f"has {ref.size_bytes} bytes in the store, expected {size_bytes}"):
            await blobs.fetch_folder(ref.model_copy(update={"size_bytes": size_bytes}), tmp_path / "fetched")
    assert not list(tmp_path.glob("fetched*"))


async def test_blob_with_more_bytes_than_its_entry_says_is_dropped_while_it_is_read(
    bus: Bus, blobs: Blobs, large_folder: Path, tmp_path: Path
) -> None:
    ref = await blobs.put_folder("a.v1.adapter", large_folder)
    entry = f"$O.{BLOBS_BUCKET}.M.{base64.urlsafe_b64encode(ref.name.encode()).decode()}"
    found = json.loads((await bus.blobs_context().get_last_msg("OBJ_blobs", entry)).data or b"") | {"size": 5 * 2**20}
    await bus.blobs_context().publish(entry, json.dumps(found).encode(), headers={"Nats-Rollup": "sub"})
    with pytest.raises(Reject, match="more than the expected 5242880 bytes"):
        await blobs.fetch_folder(ref.model_copy(update={"size_bytes": 5 * 2**20}), tmp_path / "fetched")


@pytest.mark.parametrize(
    "value", [{"name": "../a"}, {"name": "a/b"}, {"name": ""}, {"name": ".a"}, {"sha256": "0" * 63}, {"sha256": "/" * 64}]
)
def test_reference_with_a_separator_or_a_wrong_digest_is_refused(value: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        BlobRef.model_validate({"name": "a.v1.adapter-0", "size_bytes": 1, "sha256": "0" * 64} | value)


def test_large_blob_may_take_longer() -> None:
    assert fetch_timeout_s(1024) == pytest.approx(120, abs=0.1)
    assert fetch_timeout_s(2 * 2**30) == 120 + 2048
