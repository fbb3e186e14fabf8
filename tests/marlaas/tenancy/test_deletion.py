"""A tenant that is deleted loses its keys and its account, also where the command was interrupted."""

import re
import signal
from pathlib import Path

import pytest

from common import streams
from common.access.folder import SYSTEM
from common.bus import Bus
from common.errors import Fatal
from common.resilience.crashpoints import DELETING
from tests.marlaas.tenancy.commands import Operating
from tests.support.buses import HASTY
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World
from tests.support.waiting import eventually

LEFT = "SELECT deleted_at IS NOT NULL, (deletion ->> 'keys')::int, (SELECT count(*) FROM keys WHERE tenant = 'acme') FROM tenants"


async def has_account(operating: Operating) -> bool:
    async with await operating.keyed.connect(SYSTEM) as system:
        known = await system.accounts.known()
    return len(known) > 4  # the system's, the services', the operators', and globex's


async def is_refused(operating: Operating, file: str) -> bool:
    try:
        await (await Bus.connect(operating.keyed.url, "client", creds=operating.folder / file, timings=HASTY)).close()
    except Fatal:
        return True
    return False


@pytest.fixture
async def operating(keyed: Keyed, keyed_world: World, tmp_path: Path) -> Operating:
    operating = Operating.of(keyed, tmp_path)
    await operating.done("tenants", "create", "acme")
    for name in ("one", "two"):
        await operating.done("keys", "create", "acme", name, "--role", "owner", "--to", f"{name}.creds")
    return operating


async def test_deleted_tenant_has_neither_keys_nor_an_account(operating: Operating, keyed_world: World) -> None:
    async with await Bus.connect(operating.keyed.url, "client", creds=operating.folder / "one.creds", timings=HASTY) as one:
        receipt = await operating.done("tenants", "delete", "acme", "--yes")
        await eventually(lambda: not one.is_connected, 60)
    assert re.search(r"^keys +2$", receipt, re.MULTILINE)
    assert await keyed_world.rows(LEFT) == [(True, 2, 0)]
    assert await is_refused(operating, "two.creds")
    assert not await has_account(operating)
    assert not (operating.keyed.keys.folder / "tenants" / "acme.seed").exists()
    assert "deleted" in await operating.done("tenants", "list")
    assert "agrees" in await operating.done("tenants", "push")
    for command in ("tenants create acme", "keys create acme ci --to ci.creds", "tenants suspend acme"):
        assert "'acme' is deleted" in await operating.refused(*command.split())
    assert "was deleted already" in await operating.refused("tenants", "delete", "acme", "--yes")


@pytest.mark.parametrize("point", ["before_push", *DELETING])
async def test_deletion_that_was_killed_is_completed_by_repeating_it(operating: Operating, keyed_world: World, point: str) -> None:
    assert (await operating.run("tenants", "delete", "acme", "--yes", crash=point)).returncode == -signal.SIGKILL
    done = await operating.run("tenants", "delete", "acme", "--yes")
    assert done.returncode == (0 if point == "before_push" else 1), done
    assert await keyed_world.rows(LEFT) == [(True, 2, 0)]
    assert not await has_account(operating)
    assert not (operating.keyed.keys.folder / "tenants" / "acme.seed").exists()
    assert await is_refused(operating, "one.creds")


async def test_account_of_a_tenant_that_its_owner_has_deleted_goes_with_the_next_push(operating: Operating, keyed_world: World) -> None:
    assert "keys" in await operating.done("--creds", "one.creds", "tenants", "delete", "acme", "--yes")
    assert await keyed_world.rows(LEFT) == [(True, 2, 0)]
    assert await has_account(operating)
    assert "updated in NATS: acme" in await operating.done("tenants", "push")
    assert not await has_account(operating)
    assert await is_refused(operating, "one.creds")
    subject = streams.events("acme", ">")
    assert set((await keyed_world.bus.streams.subjects(streams.EVENTS, subject)).keys()) == {"events.acme.none"}
