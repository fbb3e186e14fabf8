"""Files, aliases and webhooks of a tenant, by the command line and by the SDK, over both doors, with the same output."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from common.bus import Bus
from common.messages import StoredFile
from marlaas.cli.user.files import safe_name
from marlaas.client import Client, ClientError
from tests.marlaas.verbs import TASK, Run, out
from tests.support.gateway.files import TRAIN, rows, serving_files
from tests.support.graders import CHECK
from tests.support.marlaas.command import Done, complaint, marlaas
from tests.support.scheduler.finished import settled, stages
from tests.support.scheduler.stages import World, running_world, spec
from tests.support.scheduler.uploads import digest_of
from tests.support.scheduler.webhooks import RULES

FILE = f"file-{digest_of(TRAIN)}"


@pytest.fixture
async def world(bus: Bus, database_url: str, tmp_path: Path) -> AsyncGenerator[World]:
    """With the ended task `a` of the tenant `acme`. Groups of the task `held` never end; receivers of webhooks may be on this machine."""
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "rows.jsonl").write_bytes(TRAIN)
    made = stages(bus, tmp_path / "made", withheld=lambda group, member: group.task == "held")
    async with running_world(bus, database_url, made) as world:
        object.__setattr__(world.scheduler._context, "webhooks", RULES)  # pyright: ignore[reportPrivateUsage]
        await world.run("a")
        await settled(world)
        yield world


@pytest.fixture
def run(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MARLAAS_TENANT", "acme")

    async def run(*arguments: str) -> Done:
        return await asyncio.to_thread(marlaas, *arguments, "--url", address, cwd=tmp_path)

    return run


async def test_file_is_put_listed_trained_on_and_deleted(world: World, run: Run, tmp_path: Path) -> None:
    assert await out(run("files", "list")) == "no files; upload one with `marlaas files put FILE`\n"
    put = f"12 rows; a task names them as its environment:\n  file:{FILE}\n"
    assert await out(run("files", "put", "rows.jsonl")) == put
    assert await out(run("files", "put", "rows.jsonl", "--name", "other.jsonl")) == put
    assert await listed(run) == [FILE, "rows.jsonl", "usable", "12", str(len(TRAIN)), "0"]
    (tmp_path / "file.toml").write_text(
        TASK.replace('environment.name = "toy"', f'environment = {{ name = "file:{FILE}", options = {{ grader = {toml(CHECK)} }} }}')
    )
    async with serving_files(world, world.stages):
        await out(run("submit", "file.toml", "--id", "held"))
        assert (await listed(run))[-1] == "1"
        assert "not ended use" in complaint(await run("files", "delete", FILE)).replace("has", "have")
        await out(run("cancel", "held"))
        await world.event("held", "cancelled")
    assert complaint(await run("files", "get", FILE)) == "marlaas: rows.jsonl exists already; name another file\n"
    assert await out(run("files", "get", FILE[:20], "--to", "fetched.jsonl")) == f"{FILE} is in fetched.jsonl\n"
    assert (tmp_path / "fetched.jsonl").read_bytes() == TRAIN
    assert complaint(await run("files", "get", FILE, "--to", "no/where.jsonl")).startswith("marlaas: cannot write no/where.jsonl: ")
    assert not [*tmp_path.glob("*.part"), *tmp_path.glob(".*.part")]
    assert "give 12 digits" in complaint(await run("files", "delete", FILE[:10]))
    assert "no files are named" in complaint(await run("files", "delete", FILE, "--tenant", "globex"))
    assert await out(run("files", "delete", FILE[:20], "--tenant", "acme")) == f"{FILE} is deleted; {len(TRAIN)} bytes\n"
    assert "no files are named" in complaint(await run("files", "delete", FILE))


@pytest.mark.parametrize("name", ["../up.jsonl", ".hidden", "-rf", "a\nb", ""])
def test_name_that_its_uploader_gave_is_no_path(name: str) -> None:
    file = StoredFile(
        number=1,
        tenant="acme",
        file=FILE,
        name=name,
        size_bytes=1,
        kept_bytes=1,
        state="usable",
        reason="",
        rows=1,
        uploaded_s=0,
        live_tasks=0,
    )
    assert safe_name(file) == f"{FILE}.jsonl"
    assert safe_name(file.model_copy(update={"name": "some rows.jsonl"})) == "some rows.jsonl"


@pytest.mark.parametrize("list_of", ["webhooks", "alias", "files"])
async def test_lists_are_of_a_named_tenant_or_of_all(
    world: World, address: str, run: Run, list_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARLAAS_TENANT")
    await world.run("theirs", spec(tenant="globex"))
    made = {
        "webhooks": ["webhooks", "set", "pager", "http://127.0.0.1:9/hook"],
        "alias": ["alias", "set", "prod", "{task}@latest"],
        "files": ["files", "put", "rows.jsonl"],
    }[list_of]
    assert "--tenant NAME" in complaint(await run(*(part.format(task="a") for part in made)))
    for tenant, task in ("acme", "a"), ("globex", "theirs"):
        await out(run(*(part.format(task=task) for part in made), "--tenant", tenant))
    both = (await out(run(list_of, "list", "--wide"))).splitlines()
    assert both[0].split()[0] == "tenant" and [row.split()[0] for row in both[1:]] == ["acme", "globex"]
    [row] = (await out(run(list_of, "list", "--tenant", "globex", "--wide"))).splitlines()[1:]
    assert row.split() == both[2].split()[1:]
    if list_of == "webhooks":
        await world.run("later", spec(tenant="globex"))
        shown = await out(run("webhooks", "list", "pager", "--wide"))
        assert "messages of tenant globex:" in shown and "finished" in shown.splitlines()[-1]


def toml(value: object) -> str:
    """JSON of texts and numbers in tables is TOML, but for the colons between tables' keys and values."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)


async def listed(run: Run) -> list[str]:
    _, row = (await out(run("files", "list", "--wide"))).splitlines()
    return row.split()[:6]


async def test_wrong_row_is_named_and_nothing_is_kept(world: World, run: Run, tmp_path: Path) -> None:
    (tmp_path / "wrong.jsonl").write_bytes(TRAIN + b"7\n")
    assert complaint(await run("files", "put", "wrong.jsonl")) == "marlaas: line 13: it is no JSON object\n"
    assert "no files" in await out(run("files", "list"))


@pytest.mark.parametrize("name", ["rows.jsonl", 'é; "; two \\" {}.jsonl'])
async def test_file_is_the_same_by_both_doors(world: World, address: str, nats_url: str, name: str) -> None:
    data = rows(20_000)  # parts of more than one upload message
    async with Client.connect(address, "acme") as client, Client.connect(nats_url, "acme") as other:
        file = await client.files.upload(io.BytesIO(data), name)
        assert (file.name, file.rows, file.size_bytes, file.kept_bytes) == (name, 20_000, len(data), len(data))
        assert await other.files.all() == await client.files.all() == [file]
        assert await other.files.find(file.file) == await client.files.find(file.file) == file
        assert b"".join([part async for part in client.files.content(file)]) == data
        assert await client.files.delete(file) == len(data)
        with pytest.raises(ClientError, match="no file"):
            await client.files.find(file.file)


async def test_alias_is_set_moved_listed_and_deleted(world: World, run: Run) -> None:
    assert "no aliases" in await out(run("alias", "list"))
    assert await out(run("alias", "set", "prod", "a@2", "--if", "")) == "prod names a@2\n"
    assert await out(run("alias", "set", "prod", "a@latest", "--if", "a@2")) == "prod names a@3\n"
    changed = "marlaas: alias: 'prod' names a@3\n"
    assert complaint(await run("alias", "set", "prod", "a@3", "--if", "a@2")) == changed
    assert complaint(await run("alias", "set", "prod", "a@3", "--if", "")) == changed
    assert complaint(await run("alias", "delete", "prod", "--if", "a@2")) == changed
    assert complaint(await run("alias", "delete", "prod", "--if", "")) == changed
    assert complaint(await run("alias", "set", "other", "none@1")) == "marlaas: task: no task 'none' of tenant 'acme'\n"
    assert complaint(await run("alias", "set", "tiny", "a@1")) == "marlaas: name: 'tiny' is a pool; choose another name\n"
    assert complaint(await run("alias", "set", "no name", "a@1")).startswith("marlaas: name: letters, digits")
    assert "version 9 of task 'a' is not trained" in complaint(await run("alias", "set", "prod", "a@9"))
    [row] = (await out(run("alias", "list", "--wide"))).splitlines()[1:]
    assert row.split()[:3] == ["prod", "a@3", "tiny"]
    assert await out(run("alias", "delete", "prod")) == "prod is deleted; it named a@3\n"
    assert complaint(await run("alias", "delete", "prod")) == "marlaas: alias: no alias 'prod' of tenant 'acme'\n"


async def test_webhook_is_set_changed_listed_and_deleted(world: World, run: Run) -> None:
    assert "no webhooks" in await out(run("webhooks", "list"))
    there = "http://127.0.0.1:9/hook"
    secret = await out(run("webhooks", "set", "pager", there, "--event", "failed"))
    assert secret.startswith("whsec_")
    assert await out(run("webhooks", "set", "pager", there)) == "pager is changed; its secret is the one that it had\n"
    other = await out(run("webhooks", "set", "pager", there, "--new-secret"))
    assert other.startswith("whsec_") and other != secret
    await world.run("b")
    for name in ([], ["pager"]):
        lines = (await out(run("webhooks", "list", *name, "--wide"))).splitlines()
        assert lines[1].split()[:7] == ["pager", there, "finished,", "failed,", "budget", "1", "0"]
        assert [line.split()[1] for line in lines[3:]] == ["finished"] * len(name)
    assert await out(run("webhooks", "list", "other")) == "no such webhook\n"
    assert "url: " in complaint(await run("webhooks", "set", "pager", "http://10.0.0.1/"))
    assert complaint(await run("webhooks", "set", "pager", "mailto:x")).startswith("marlaas: url: https://")
    assert await out(run("webhooks", "delete", "pager")) == "pager is deleted\n"
    assert complaint(await run("webhooks", "delete", "pager")) == "marlaas: webhook: no webhook 'pager' of tenant 'acme'\n"
