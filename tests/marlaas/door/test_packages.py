"""Uploads by the SDK, to a scheduler whose environment service takes any package."""

import asyncio
import zipfile
from pathlib import Path

import pytest

from common.bus import Bus
from common.client_api.errors import ClientError
from common.messages import MAX_PACKAGE_BYTES
from marlaas.client import Client
from marlaas.packages import read_wheel
from tests.support.paths import ROOT
from tests.support.scheduler.stages import running_world, spec
from tests.support.scheduler.uploads import WHEEL, PackageStages, digest_of, serving_own

EXAMPLE = ROOT / "examples" / "own_environment"


async def test_a_package_is_uploaded_listed_found_and_deleted(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = PackageStages(trains=False)
    waits: list[str] = []
    async with running_world(bus, database_url, stages) as world, Client.connect(nats_url, "acme") as client:
        uploading = asyncio.create_task(client.packages.upload(WHEEL, waits=waits.append))
        await world.rows_become("SELECT state FROM packages", [("checking",)])
        async with serving_own(bus, stages):
            made = await uploading
            assert made == {"digest": digest_of(WHEEL), "name": "games", "version": "1.0", "environments": ["own:game"]}
            assert waits and "family 'own'" in waits[0]
            assert await client.packages.upload(WHEEL) == made, "the same bytes are the same package"
            await world.run("a", spec(environment={"name": "own:game"}), until="accepted")
            [package] = await client.packages.all()
            assert (package.package, package.live_tasks, package.environments) == ("games", 1, ["own:game"])
            async with Client.connect(nats_url, "globex") as other:
                assert await other.packages.all() == []
            with pytest.raises(ClientError, match="1 task that has not ended"):
                await client.packages.delete(package)
            await world.control("cancel", "a", until="cancelled")
            for named in ("games", package.digest[:12]):
                assert (await client.packages.find(named)).digest == package.digest
            assert await client.packages.delete(package) == len(WHEEL)
            with pytest.raises(ClientError, match="no package 'games'"):
                await client.packages.find("games")


async def test_what_is_wrong_is_one_sentence(bus: Bus, nats_url: str, database_url: str) -> None:
    stages = PackageStages(wrong="it is no wheel")
    async with running_world(bus, database_url, stages), serving_own(bus, stages), Client.connect(nats_url) as client:
        with pytest.raises(ClientError, match="say whose package it is"):
            await client.packages.upload(WHEEL)
        for wheel in (b"", bytes(MAX_PACKAGE_BYTES + 1)):
            with pytest.raises(ClientError, match="a package has at most"):
                await client.packages.upload(wheel, "acme")
        with pytest.raises(ClientError, match="it is no wheel"):
            await client.packages.upload(WHEEL, "acme")


def test_a_projects_folder_is_built_without_a_network(tmp_path: Path) -> None:
    built = tmp_path / "built.whl"
    before = sorted(EXAMPLE.rglob("*"))
    built.write_bytes(read_wheel(EXAMPLE))
    assert sorted(EXAMPLE.rglob("*")) == before, "the folder stays as it was"
    assert "letter_count/environment.py" in zipfile.ZipFile(built).namelist()
    assert read_wheel(built) == built.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "objection"),
    [
        ("notes.txt", b"x", "neither a folder nor a wheel"),
        ("absent.whl", None, "cannot read"),
        ("large.whl", bytes(MAX_PACKAGE_BYTES + 1), "a package has at most"),
    ],
)
def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, name: str, content: bytes | None, objection: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ClientError, match=objection):
        read_wheel(tmp_path / name)


def test_a_folder_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="no pyproject"):
        read_wheel(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project")
    with pytest.raises(ClientError, match="cannot be built: "):
        read_wheel(tmp_path)
