"""Adapters through the door: whole and checked, or not at all."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from common.blobs import Blobs
from common.bus import Bus
from common.messages import BlobRef
from marlaas.client import Client, ClientError
from tests.marlaas.tasks import SPEC
from tests.support.scheduler.stages import World


async def stored_as(world: World, blob: BlobRef, task: str) -> None:
    """Let version 3 of the task be this blob."""
    stored = json.dumps(blob.model_dump())
    where = f"WHERE task = '{task}' AND version = 2 RETURNING 1"
    await world.rows(f"UPDATE steps SET adapter = jsonb_set(adapter, '{{blob}}', '{stored}') {where}")


async def test_adapter_of_several_mebibytes_arrives_whole(scheduler: World, bus: Bus, nats_url: str, tmp_path: Path) -> None:
    content = os.urandom(9_000_001)
    (tmp_path / "large" / "below").mkdir(parents=True)
    (tmp_path / "large" / "below" / "weights").write_bytes(content)
    async with Client.connect(nats_url, "acme") as client:
        task = await client.submit(SPEC)
        await client.wait(task)
        blob = await Blobs(bus).put_folder(f"{task}.v3.adapter", tmp_path / "large")
        await stored_as(scheduler, blob, task)
        pulled = await asyncio.gather(*(client.pull(task, tmp_path / f"pulled-{number}") for number in range(3)))
        assert [one.blob for one in pulled] == [blob] * 3
        assert all((tmp_path / f"pulled-{number}" / "below" / "weights").read_bytes() == content for number in range(3))


async def test_adapter_whose_digest_differs_leaves_no_folder(scheduler: World, bus: Bus, nats_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "content").write_text("x")
    async with Client.connect(nats_url, "acme") as client:
        task = await client.submit(SPEC)
        await client.wait(task)
        blob = await Blobs(bus).put_folder(f"{task}.v3.adapter", tmp_path / "other")
        await stored_as(scheduler, blob.model_copy(update={"sha256": "0" * 64}), task)
        with pytest.raises(ClientError, match=r"version 3 of task .* did not arrive as it is stored: .*SHA-256"):
            await client.pull(task, tmp_path / "pulled")
        await stored_as(scheduler, blob.model_copy(update={"size_bytes": blob.size_bytes + 5}), task)
        with pytest.raises(ClientError, match="is no longer stored"):
            await client.pull(task, tmp_path / "pulled")
        assert not list(tmp_path.glob("pulled*"))
