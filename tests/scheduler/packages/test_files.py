"""Files: parts, rows, contradictions, quotas, tasks that name them, deletion, and what is read of them."""

import json
from typing import Any

import pytest

from common import streams
from common.blobs import Blobs
from common.bus import Bus, Outgoing
from common.client_api.asking import Door, UnknownHere
from common.client_api.errors import ClientError
from common.client_api.tenancy.files import Files
from common.messages import PART_BYTES, AskFileChunk, ChunkAnswer, LimitValue, SetTenant, UploadFile, file_blob, file_id
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.scheduler.uploads import WHEEL, PackageStages, answer, delete, digest_of, parts, send


def rows(number: int, **more: Any) -> bytes:
    made = ({"messages": [{"role": "user", "content": f"What is {one}?"}], "answer": str(one), **more} for one in range(number))
    return b"".join(json.dumps(row).encode() + b"\n" for row in made)


SMALL = rows(3)
LARGE = rows(20_000)


def file_parts(data: bytes, request: str, tenant: str = "acme", **changes: Any) -> list[Outgoing]:
    found = list[Outgoing]()
    for offset in range(0, len(data), PART_BYTES):
        values = {"digest": digest_of(data), "size_bytes": len(data), "data": data[offset : offset + PART_BYTES], "name": "rows.jsonl"}
        job = UploadFile(tenant=tenant, request=request, offset=offset, **(values | changes))
        found.append(Outgoing(streams.job("upload-file", tenant), job, f"{request}:{offset}"))
    return found


def door(world: World, tenant: str | None = "acme") -> Door:
    return Door(world.bus, "nats", tenant)


def named(data: bytes, **options: Any) -> dict[str, Any]:
    return {"environment": {"name": f"file:{file_id(digest_of(data))}", "options": options}}


async def test_parts_in_any_order_make_a_file_that_is_listed_read_and_deleted(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, PackageStages()) as world:
        assert len(LARGE) > 2 * PART_BYTES
        first, *rest = file_parts(LARGE, "one")
        await send(world, *reversed(rest), first)
        assert await answer(world, "package", "one") == {
            "request": "one",
            "digest": digest_of(LARGE),
            "state": "usable",
            "name": "rows.jsonl",
        }
        [found] = await Files(door(world)).all()
        assert (found.file, found.rows, found.size_bytes, found.kept_bytes) == (file_id(digest_of(LARGE)), 20_000, len(LARGE), len(LARGE))
        assert b"".join([part async for part in Files(door(world)).content(found)]) == LARGE
        assert await world.rows("SELECT count(*) FROM package_parts") == [(0,)]
        assert file_blob("acme", found.digest) in {blob.name for blob in await Blobs(bus).listed()}
        assert await Files(door(world)).delete(found) == len(LARGE)
        assert await Files(door(world)).all() == []
        assert file_blob("acme", found.digest) not in {blob.name for blob in await Blobs(bus).listed()}


async def test_a_file_is_uploaded_through_the_door_and_known_the_second_time(bus: Bus, database_url: str, tmp_path: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(LARGE)
    async with running_world(bus, database_url, PackageStages()) as world:
        with path.open("rb") as file:
            once = await Files(door(world)).upload(file, "rows.jsonl")
            again = await Files(door(world)).upload(file, "other.jsonl")
        assert once == again, "the same bytes are the same file"
        assert once.rows == 20_000
        with pytest.raises(ClientError, match="line 4: it is no JSON object"):
            (tmp_path / "wrong.jsonl").write_bytes(SMALL + b"7\n")
            with (tmp_path / "wrong.jsonl").open("rb") as file:
                await Files(door(world)).upload(file, "wrong.jsonl")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (SMALL + b"[1]\n", "line 4: it is no JSON object"),
        (SMALL + b'\n{"a": 1}', "line 5: messages: a list with one message at least is required"),
        (SMALL + b'{"messages": [{"role": "user", "content": "\xff"}]}', "line 4: it is no UTF-8 text"),
    ],
)
async def test_a_wrong_row_refuses_the_file_and_names_the_line(bus: Bus, database_url: str, data: bytes, reason: str) -> None:
    async with running_world(bus, database_url, PackageStages()) as world:
        await send(world, *file_parts(data, "one"))
        assert (await answer(world, "package", "one"))["reasons"] == [reason]
        [found] = await Files(door(world)).all()
        assert (found.state, found.reason, found.rows) == ("refused", reason, 0)
        assert await world.rows("SELECT count(*) FROM package_parts") == [(0,)]
        with pytest.raises(UnknownHere):
            await door(world).ask("file-chunk", AskFileChunk(file=found.file, offset=0), ChunkAnswer)
        assert "no usable file" in (await world.run("a", spec(**named(data)), until="rejected"))["reasons"][0]


async def test_what_is_not_announced_is_refused(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, PackageStages()) as world:
        await send(world, *file_parts(SMALL, "one", digest=digest_of(b"other")))
        assert "not the announced one" in (await answer(world, "package", "one"))["reasons"][0]
        assert await Files(door(world)).all() == []
        await send(world, *parts(WHEEL, "wheel")[:1])
        await send(world, *file_parts(WHEEL, "two")[:1])
        assert "these bytes are here as a package" in (await answer(world, "package", "two"))["reasons"][0]


async def test_another_tenant_sees_none_of_it(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, PackageStages()) as world:
        await send(world, *file_parts(SMALL, "one"))
        await answer(world, "package", "one")
        file = file_id(digest_of(SMALL))
        assert await Files(door(world, "globex")).all() == []
        for tenant in ("globex", "acme"):
            foreign = file if tenant == "globex" else file_id(digest_of(b"nothing"))
            with pytest.raises(UnknownHere, match=f"no file '{foreign}' of tenant '{tenant}'"):
                await door(world, tenant).ask("file-chunk", AskFileChunk(file=foreign, offset=0), ChunkAnswer)
        assert "no package" in (await delete(world, digest_of(SMALL), "theirs", "globex"))["reasons"][0]
        await world.submit("g", spec(tenant="globex", **named(SMALL)))
        assert (await world.event("g", "rejected", "globex"))["reasons"][0] == (
            f"environment.name: tenant 'globex' has no usable file '{file}'; `marlaas files list` shows those it has"
        )


async def test_a_quota_of_bytes_counts_files(bus: Bus, database_url: str) -> None:
    async with running_world(bus, database_url, PackageStages()) as world:
        await send(world, *file_parts(SMALL, "one"))
        assert (await answer(world, "package", "one"))["state"] == "usable"
        job = SetTenant(tenant="acme", request="limit", limits=[LimitValue(of="max_stored_bytes", value=len(SMALL) + 10)])
        await send(world, Outgoing(streams.job("set-tenant", "acme"), job, "limit"))
        await world.rows_become("SELECT max_stored_bytes FROM limits WHERE tenant = 'acme'", [(len(SMALL) + 10,)])
        await send(world, *file_parts(rows(4), "two"))
        assert (await answer(world, "package", "two"))["reasons"][0].startswith("max_stored_bytes: at most")
