"""Blobs of every size arrive through every reader, with no more than the key of the service that reads."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from common.blobs import Blobs
from common.blobs.chunks import BlobChunks
from common.messages import BlobRef
from tests.support.keyed import Keyed

KIB, MIB = 1024, 1024 * 1024
SIZES = {"1 KiB": KIB, **{f"{number} MiB": number * MIB for number in (1, 2, 3, 4, 8, 16, 64)}}
LARGEST = 629_000_000
"""Adapter and checkpoint of a real run."""
READERS = ("scheduler", "env", "rollout", "trainer", "operator")
"""Services whose keys read blobs; the gateway, as every tenant, asks the scheduler for parts of them."""
PART_BYTES = 1_000_000


@pytest.mark.parametrize("size", SIZES)
async def test_blob_arrives_through_every_reader_with_each_services_key(keyed: Keyed, size: str, tmp_path: Path) -> None:
    await arrives_everywhere(keyed, SIZES[size], tmp_path)


@pytest.mark.acceptance
async def test_largest_blob_arrives_through_every_reader_with_each_services_key(keyed: Keyed, tmp_path: Path) -> None:
    await arrives_everywhere(keyed, LARGEST, tmp_path)


async def arrives_everywhere(keyed: Keyed, size: int, tmp_path: Path) -> None:
    folder, content = tmp_path / "folder", os.urandom(MIB) * (size // MIB + 1)
    folder.mkdir()
    (folder / "weights").write_bytes(content[:size])
    async with await keyed.connect("trainer") as trainer, asyncio.timeout(60 + size / MIB):
        ref = await Blobs(trainer).put_folder("task.v1.adapter", folder)
    for service in READERS:
        async with await keyed.connect(service) as bus, asyncio.timeout(60 + size / MIB):
            blobs, file = Blobs(bus), tmp_path / f"{service}.file"
            fetched = await blobs.fetch_folder(ref, tmp_path / service)
            assert (fetched / "weights").stat().st_size == size
            await blobs.fetch_file(ref.name, ref.sha256, file, most_bytes=ref.size_bytes)
            assert file.stat().st_size == ref.size_bytes
            file.unlink()
    async with await keyed.connect("scheduler") as bus, asyncio.timeout(60 + size / MIB):
        assert await parts(BlobChunks(bus), ref) == ref.sha256
        assert [blob.name for blob in await Blobs(bus).listed() if blob.is_whole] == [ref.name]
        await Blobs(bus).delete(ref.name)


async def parts(chunks: BlobChunks, ref: BlobRef) -> str:
    """Digest of all parts, as the question `chunk` reads them for `pull` and for adapters by HTTP."""
    digest = hashlib.sha256()
    for offset in range(0, ref.size_bytes, PART_BYTES):
        digest.update(await chunks.read(ref, offset, PART_BYTES))
    return digest.hexdigest()
