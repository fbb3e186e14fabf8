"""`marlaas audit` on a server with keys: each row names the key that has acted, and an owner reads its own tenant's rows only."""

import csv
from io import StringIO
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from marlaas.client import Client, ClientError
from tests.marlaas.tasks import SPEC
from tests.marlaas.tenancy.commands import Operating
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World, spec

COLUMNS = ("who", "via", "verb", "target", "outcome")


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


async def test_every_row_names_its_key(keyed: Keyed, keyed_world: World, tmp_path: Path) -> None:
    operating = Operating.of(keyed, tmp_path)
    await operating.done("tenants", "create", "acme")
    await operating.done("keys", "create", "acme", "ci", "--role", "owner", "--to", "acme.creds")
    await operating.done("keys", "create", "acme", "desk", "--role", "member", "--to", "desk.creds")
    async with Client.connect(keyed.url, creds=tmp_path / "acme.creds") as client:
        task = await client.submit(SPEC)
        assert (await client.wait(task)).state == "finished"
        await client.pull(task, tmp_path / "adapter")
        with pytest.raises(ClientError):
            await client.submit({**SPEC, "pool": "nowhere"})
        with pytest.raises(ClientError):
            await client.audit("globex")
    await keyed_world.run("theirs", spec(tenant="globex"), until="accepted")
    everything = read(await operating.done("audit", "--csv"))
    own = read(await operating.done("--creds", "acme.creds", "audit", "--csv"))
    assert own == [row for row in everything if row["tenant"] == "acme"]
    assert {row["tenant"] for row in everything} == {"acme", "globex"}
    ci, desk = (read_credentials(tmp_path / name).public for name in ("acme.creds", "desk.creds"))
    operator = read_credentials(keyed.keys.credentials("operator")).public
    shown = [tuple(row[name] for name in COLUMNS) for row in own]
    assert shown == [
        (f"{operator[:8]}…", "key", "create-tenant", "acme", "accepted"),
        (f"{operator[:8]}…", "key", "create-key", ci, "accepted"),
        (f"{operator[:8]}…", "key", "create-key", desk, "accepted"),
        ("ci", "key", "submit", task, "accepted"),
        ("ci", "ask", "adapter", f"{task}.v3", "accepted"),
        ("ci", "key", "submit", "", "refused"),
    ]
    assert {row["key"] for row in own} == {operator, ci}
    assert [row["host"] for row in own if row["via"] == "ask"] == ["127.0.0.1"]
    assert "refused: pool" in await operating.done("audit", "--tenant", "acme", "--since", "2020-01-01T10:00")
    assert "no rows yet" in await operating.done("audit", "--since", "2199-01-01")
    assert "role member may not" in await operating.refused("--creds", "desk.creds", "audit")
