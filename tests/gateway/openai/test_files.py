"""Files and jobs on them, with OpenAI's own client, against a real scheduler; environment, sampler and trainer are the test's."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from openai.types import FileDeleted, FileObject

from common.bus import Bus
from common.client_api.tenancy.files import Files
from common.messages import MAX_FILE_BYTES
from tests.gateway.openai.clients import Opened
from tests.gateway.openai.clients import openai as client_of
from tests.gateway.openai.fine_tuning import SMALL, ended, strictly
from tests.support.gateway.entering import VALID, entering
from tests.support.gateway.files import HELD_OUT, NOTHING, TRAIN, by, put, rows, serving_files
from tests.support.gateway.serving import client, gateway
from tests.support.graders import CHECK, MULTI
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World
from tests.support.scheduler.uploads import digest_of


async def test_files_are_created_listed_read_and_deleted(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client:
        created, again = await put(client), await put(client)
        FileObject.model_validate_json(created.model_dump_json(), strict=True)
        assert created == again, "the same bytes are the same file"
        expected = (f"file-{digest_of(TRAIN)}", len(TRAIN), "rows.jsonl", "fine-tune", "processed")
        assert (created.id, created.bytes, created.filename, created.purpose, created.status) == expected
        other = await put(client, HELD_OUT, "held out.jsonl")
        assert [one.id for one in (await client.files.list()).data] == [other.id, created.id]
        assert [one.id async for one in client.files.list(limit=1, order="asc")] == [created.id, other.id]
        assert (await client.files.list(purpose="batch")).data == []
        assert await client.files.retrieve(created.id) == created
        assert (await client.files.content(created.id)).content == TRAIN
        deleted = await client.files.delete(created.id)
        FileDeleted.model_validate_json(deleted.model_dump_json(), strict=True)
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(created.id)
            with pytest.raises(openai.NotFoundError):
                await call("file-none")


async def test_download_of_a_file_is_resumed_after_cuts_and_gives_the_digest(world: World, nats_url: str) -> None:
    data = rows(40_000)  # several parts
    async with gateway(world.bus, nats_url, sampler=NOTHING) as address, client_of(address) as acme, client(address) as door:
        file, tenant = await put(acme, data), {"tenant": "acme"}
        path = f"/v1/files/{file.id}/content"
        got = b""
        while len(got) < len(data):
            part = await door.get(
                path, params=tenant, headers={"Range": f"bytes={len(got)}-{len(got) + 699_999}", "If-Range": f'"{digest_of(data)}"'}
            )
            assert (part.status_code, bool(part.content)) == (206, True)
            assert part.headers["content-range"] == f"bytes {len(got)}-{len(got) + len(part.content) - 1}/{len(data)}"
            got += part.content
        whole = await door.get(path, params=tenant)
        beyond = await door.get(path, params=tenant, headers={"Range": f"bytes={len(data)}-"})
        last = await door.get(path, params=tenant, headers={"Range": "bytes=-7"})
        other = await door.get(path, params=tenant, headers={"Range": "bytes=0-4", "If-Range": '"other"'})
        known = await door.get(path, params=tenant, headers={"If-None-Match": whole.headers["etag"]})
    assert digest_of(got) == file.id.removeprefix("file-")
    assert (whole.content, whole.headers["etag"], whole.headers["accept-ranges"]) == (data, f'"{digest_of(data)}"', "bytes")
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(data)}")
    assert (last.status_code, last.content, other.status_code, other.content) == (206, data[-7:], 200, data)
    assert (known.status_code, known.content) == (304, b"")


async def test_another_tenant_finds_none_of_it(world: World, nats_url: str) -> None:
    async with (
        gateway(world.bus, nats_url, sampler=NOTHING) as address,
        client_of(address) as acme,
        client_of(address, tenant="globex") as globex,
    ):
        file = await put(acme)
        assert (await globex.files.list()).data == []
        answers: set[str] = set()
        for name in (file.id, f"file-{'0' * 64}", "steps-none"):
            for call in (globex.files.retrieve, globex.files.content):
                with pytest.raises(openai.NotFoundError) as caught:
                    await call(name)
                answers.add(str(caught.value.body))
        assert len(answers) == 1
        with pytest.raises(openai.NotFoundError):
            await globex.files.delete(file.id)
        with pytest.raises(openai.BadRequestError, match="there is no such file") as refused:
            await globex.fine_tuning.jobs.create(model="tiny", training_file=file.id, method=by())
        assert refused.value.param == "training_file"
        assert (await put(globex)).id == file.id, "the same bytes are a file of each"


async def test_wrong_uploads_are_refused_with_the_place(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client:
        wrong: list[tuple[dict[str, Any], str, str | None]] = [
            ({"file": ("a.jsonl", TRAIN + b"7\n")}, "line 13: it is no JSON object", None),
            ({"file": ("a.jsonl", b'{"a": 1}\n')}, "line 1: messages: a list", None),
            ({"file": ("a.jsonl", b"")}, "line 1: the file has no row", None),
            ({"purpose": "assistants"}, "files are for 'fine-tune'", "purpose"),
            ({"expires_after": {"anchor": "created_at", "seconds": 3600}}, "files stay until they are deleted", "expires_after[anchor]"),
            ({"extra_body": {"more": "1"}}, "there is no such field here", "more"),
        ]
        for given, reason, param in wrong:
            with pytest.raises(openai.BadRequestError, match=reason.replace("[", r"\[")) as caught:
                await client.files.create(**({"file": ("a.jsonl", TRAIN), "purpose": "fine-tune"} | given))
            assert caught.value.param == param
        assert (await client.files.list()).data == []
        with pytest.raises(openai.APIStatusError) as not_a_form:
            await client.post("/files", body={"purpose": "fine-tune"}, cast_to=object)
        assert not_a_form.value.status_code == 415
        async with httpx.AsyncClient(base_url=str(client.base_url), params={"tenant": "acme"}, timeout=60) as plain:
            for body in (b"no form", b"--x\r\n", b"", b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--\r\n"):
                headers = {"Content-Type": "multipart/form-data; boundary=x"}
                answer = await plain.post("files", content=body, headers=headers)
                assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error"), answer.text


async def test_a_form_in_another_character_set_is_refused(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client, httpx.AsyncClient(base_url=str(client.base_url), params={"tenant": "acme"}, timeout=60) as plain:
        for charset in ("undefined", "utf-7", "idna", "utf-16", "latin-1", "none", "x\0y"):
            body = b'--x\r\nContent-Disposition: form-data; name="+2AA-"\r\n\r\n1\r\n--x--\r\n'
            headers = {"Content-Type": f'multipart/form-data; boundary=x; charset="{charset}"'.replace("\0", "%")}
            answer = await plain.post("files", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["message"]) == (415, "send the form in UTF-8"), charset
        for name in (b"+2AA-", b"\xed\xa0\x80", b"\xff"):
            body = b'--x\r\nContent-Disposition: form-data; name="' + name + b'"\r\n\r\n1\r\n--x--\r\n'
            headers = {"Content-Type": "multipart/form-data; boundary=x; charset=UTF-8"}
            answer = await plain.post("files", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter"), name


async def test_an_upload_that_takes_too_long_says_so(world: World, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(Files, "upload", late)
    async with opened(NOTHING) as client:
        with pytest.raises(openai.APIStatusError, match="not taken in time") as caught:
            await put(client)
        assert caught.value.status_code == 408


async def test_an_admin_names_whose_copy_is_deleted(world: World, nats_url: str) -> None:
    async with (
        gateway(world.bus, nats_url, sampler=NOTHING) as address,
        client_of(address) as acme,
        client_of(address, tenant="globex") as globex,
        client_of(address, tenant=None) as admin,
    ):
        file = (await put(acme)).id
        assert (await put(globex)).id == file
        with pytest.raises(openai.BadRequestError, match="several tenants have this file") as caught:
            await admin.files.delete(file)
        assert caught.value.code == "tenant_required"
        assert (await acme.files.retrieve(file)).id == file, "nothing is deleted"
        assert (await admin.files.delete(file, extra_query={"tenant": "globex"})).deleted
        assert (await acme.files.retrieve(file)).id == file
        assert (await admin.files.delete(file)).deleted, "there is one copy"


async def test_a_job_on_a_file_is_accepted_and_its_result_is_a_file(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client, serving_files(world, world.stages):
        train, held_out = await put(client), await put(client, HELD_OUT)
        created = strictly(
            await client.fine_tuning.jobs.create(
                model="tiny",
                training_file=train.id,
                validation_file=held_out.id,
                method=by(batch_size=4, n_epochs=2),
                extra_body={"marlaas": {"algorithm": {"group_size": 2}}},
            )
        )
        assert (created.training_file, created.validation_file) == (train.id, held_out.id)
        assert created.method and created.method.reinforcement and created.method.reinforcement.grader.model_dump() == CHECK
        assert created.method.reinforcement.hyperparameters
        assert created.method.reinforcement.hyperparameters.batch_size == created.hyperparameters.batch_size
        spec: Any = created.model_extra and created.model_extra["marlaas"]["spec"]
        assert spec["environment"] == spec["environment"] | {"name": f"file:{train.id}", "options": {"grader": CHECK}}
        assert (spec["steps"], spec["evaluation"]["prompts"]) == (6, 5)
        listed = (await client.fine_tuning.jobs.list()).data[0]
        assert {one.hyperparameters.n_epochs for one in (created, listed, created.method.reinforcement)} == {2}
        assert spec["evaluation"]["options"] == {"file": held_out.id}
        with pytest.raises(openai.ConflictError, match="have not ended use it"):
            await client.files.delete(train.id)
        job = strictly(await ended(client, created.id))
        assert job.status == "succeeded"
        [result] = job.result_files
        described = await client.files.retrieve(result)
        FileObject.model_validate_json(described.model_dump_json(), strict=True)
        content = (await client.files.content(result)).content
        assert (described.bytes, described.purpose) == (len(content), "fine-tune-results")
        assert [json.loads(line)["version"] for line in content.splitlines()] == [1, 2, 3, 4, 5, 6]
        with pytest.raises(openai.BadRequestError, match="goes with its task"):
            await client.files.delete(result)
        assert (await client.files.delete(train.id)).deleted


@pytest.mark.parametrize(
    ("change", "param", "reason"),
    [
        ({"method": {"type": "reinforcement"}}, "method.reinforcement.grader", "need a grader"),
        ({"method": by({"type": "score_model", "name": "s"})}, "method.reinforcement.grader.type", "'score_model' is not supported"),
        ({"method": by(CHECK | {"operation": "is"})}, "method.reinforcement.grader.operation", "'eq', 'ne'"),
        ({"training_file": "file-abc"}, "training_file", "there is no such file"),
        ({"training_file": f"file-{'0' * 64}"}, "training_file", "there is no such file"),
        ({"validation_file": f"file-{'0' * 64}"}, "validation_file", "there is no such file"),
        ({"validation_file": "env:toy"}, "validation_file", "there is no such file"),
        ({"training_file": "env:toy"}, "method.reinforcement.grader", "the environment grades"),
        ({"method": by(n_epochs=1), "extra_body": {"marlaas": SMALL}}, "method.reinforcement.hyperparameters.n_epochs", "give one of them"),
    ],
)
async def test_what_does_not_go_together_is_named(world: World, opened: Opened, change: dict[str, Any], param: str, reason: str) -> None:
    async with opened(NOTHING) as client:
        file = await put(client)
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await client.fine_tuning.jobs.create(**({"model": "tiny", "training_file": file.id, "method": by()} | change))
        assert caught.value.param == param


async def test_graders_are_validated(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client:
        found = await client.fine_tuning.alpha.graders.validate(grader=CHECK)  # pyright: ignore
        assert found.grader is not None and found.grader.model_dump(exclude_none=True) == CHECK
        await client.fine_tuning.alpha.graders.validate(grader=MULTI)  # pyright: ignore
        with pytest.raises(openai.BadRequestError, match="'label_model' is not supported") as caught:
            await client.fine_tuning.alpha.graders.validate(grader={"type": "label_model", "name": "x"})  # pyright: ignore
        assert caught.value.param == "grader.type" and caught.value.code == "unsupported_parameter"


async def test_each_role_may_what_it_may_with_files(keyed: Keyed, keyed_world: World) -> None:
    async with entering(keyed) as made:
        for tenant in ("acme", "globex"):
            await made.tenant(tenant)
        keys = {name: await made.key(tenant, name, role) for name, (tenant, role) in VALID.items()}
        async with gateway(made.bus, keyed.url, access=made.access, sampler=NOTHING) as address:
            form: dict[str, Any] = {"files": {"file": ("rows.jsonl", TRAIN)}, "data": {"purpose": "fine-tune"}}
            file = f"/v1/files/file-{digest_of(TRAIN)}"
            found: dict[str, list[int]] = {}
            for name in ("member", "owner", "reader", "foreign"):
                async with client(address, keys[name]) as door:
                    answers = [await door.post("/v1/files", **form)] if name != "foreign" else []
                    answers += [await door.get("/v1/files"), await door.get(file), await door.get(f"{file}/content")]
                    found[name] = [one.status_code for one in answers]
                    if name == "foreign":
                        assert answers[0].json()["data"] == []
            assert found == {"member": [200] * 4, "owner": [200] * 4, "reader": [403, 200, 200, 200], "foreign": [200, 404, 404]}
            for name, status in (("reader", 403), ("foreign", 404), ("member", 200)):
                async with client(address, keys[name]) as door:
                    assert (await door.delete(file)).status_code == status
            async with client(address, "mk-" + "0" * 64) as door:
                for answer in (await door.post("/v1/files", **form), await door.get("/v1/files"), await door.delete(file)):
                    assert answer.status_code == 401


async def test_too_much_is_refused_before_it_is_read(world: World, nats_url: str) -> None:
    head = f"POST /v1/files?tenant=acme HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MAX_FILE_BYTES + 2**20}\r\nExpect: 100-continue\r\n"
    async with gateway(world.bus, nats_url, sampler=NOTHING) as address:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write(head.encode() + b"Content-Type: multipart/form-data; boundary=x\r\n\r\n")
        answer = await reader.readuntil(b"\r\n")
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413")


async def test_while_no_scheduler_answers_files_are_unavailable(bus: Bus, nats_url: str) -> None:
    await bus.declare()
    async with gateway(bus, nats_url, sampler=NOTHING, until_ready=False) as address, client_of(address) as made:
        for call in (made.files.list, lambda: put(made)):
            with pytest.raises(openai.InternalServerError) as caught:
                await call()
            assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "2")
