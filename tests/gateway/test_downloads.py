"""Downloads of adapters: whole, in ranges, resumed and checked."""

import hashlib
import io
import tarfile

import httpx
import pytest

from common.client_api.asking import Door
from common.client_api.errors import ClientError
from common.messages import AdapterAnswer, AdapterRef, AskAdapter
from gateway_svc.http.download import Span, Unsatisfiable, adapter_source, bytes_of, requested_span
from tests.support.scheduler.stages import World, spec

WHOLE = "/v1/tasks/a-1/versions/{}/adapter.tar"


async def trained(world: World) -> None:
    await world.run("a-1", spec(keep={"adapters": "all"}))


async def test_adapter_has_length_digest_and_bytes(world: World, door: httpx.AsyncClient) -> None:
    await trained(world)
    answer = await door.get(WHOLE.format(2))
    latest, best, third = [(await door.get(WHOLE.format(one))).headers["etag"] for one in ("latest", "best", 3)]

    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert latest == third
    assert best
    unchanged = await door.get(WHOLE.format(2), headers={"If-None-Match": answer.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


async def test_download_is_resumed_after_cuts(world: World, door: httpx.AsyncClient) -> None:
    await trained(world)
    whole = (await door.get(WHOLE.format(1))).content
    got = b""
    while len(got) < len(whole):
        part = await door.get(WHOLE.format(1), headers={"Range": f"bytes={len(got)}-{len(got) + 999}"})
        assert (part.status_code, bool(part.content)) == (206, True)
        assert part.headers["content-range"] == f"bytes {len(got)}-{len(got) + len(part.content) - 1}/{len(whole)}"
        got += part.content

    assert got == whole
    assert (await door.get(WHOLE.format(1), headers={"Range": "bytes=-7"})).content == whole[-7:]
    beyond = await door.get(WHOLE.format(1), headers={"Range": f"bytes={len(whole)}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(whole)}")
    changed = await door.get(WHOLE.format(1), headers={"Range": "bytes=0-4", "If-Range": '"other"'})
    assert (changed.status_code, changed.content) == (200, whole)


async def test_one_file_of_an_adapter(world: World, door: httpx.AsyncClient) -> None:
    await trained(world)
    packed = (await door.get(WHOLE.format(1))).content
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = archive.getnames()
        contents = {info.name: file.read() for info in archive if (file := archive.extractfile(info))}

    assert names
    for name in names:
        answer = await door.get(f"/v1/tasks/a-1/versions/1/files/{name}")
        part = await door.get(f"/v1/tasks/a-1/versions/1/files/{name}", headers={"Range": "bytes=1-2"})
        assert answer.content == contents[name]
        assert part.content == contents[name][1:3]
    assert (await door.get("/v1/tasks/a-1/versions/1/files/../secrets")).status_code == 404


async def test_absent_versions_say_which_there_are(world: World, door: httpx.AsyncClient) -> None:
    await trained(world)

    absent = await door.get(WHOLE.format(9))
    assert (absent.status_code, absent.json()["code"]) == (404, "not_found")
    assert "1 to 3" in absent.json()["detail"]
    assert (await door.get(WHOLE.format("newest"))).status_code == 400


@pytest.mark.parametrize("wanted", [None, Span(3, 10)])
async def test_last_byte_is_sent_only_when_the_digest_is_right(world: World, nats_url: str, wanted: Span | None) -> None:
    await trained(world)
    door = Door(world.bus, nats_url, "acme")
    adapter = (await door.ask("adapter", AskAdapter(task="a-1", version=1), AdapterAnswer)).adapter
    other = adapter.model_copy(update={"blob": adapter.blob.model_copy(update={"sha256": "0" * 64})})

    async def read(ref: AdapterRef) -> bytes:
        span = wanted or Span(0, ref.blob.size_bytes - 1)
        got = b""
        try:
            async for part in bytes_of(adapter_source(door, ref), span, is_checked=True):
                got += part
        except ClientError:
            assert len(got) < span.size
            raise
        return got

    assert len(await read(adapter)) == (wanted or Span(0, adapter.blob.size_bytes - 1)).size
    with pytest.raises(ClientError, match="did not arrive"):
        await read(other)


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None),
        ("bytes=0-0", Span(0, 0)),
        ("bytes=5-", Span(5, 9)),
        ("bytes=-3", Span(7, 9)),
        ("bytes=-30", Span(0, 9)),
        ("bytes=2-300", Span(2, 9)),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=1-2", None),
        ("bytes=-", None),
    ],
)
def test_ranges(header: str | None, span: Span | None) -> None:
    assert requested_span(header, 10) == span


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=-0", f"bytes={'9' * 40}-"])
def test_ranges_behind_the_end(header: str) -> None:
    with pytest.raises(Unsatisfiable):
        requested_span(header, 10)
