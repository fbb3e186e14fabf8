"""Tenants and keys by the operator's commands: what they change in PostgreSQL, in NATS and on the disk, and what interrupts them."""

import re
import signal
import stat
import time
from pathlib import Path

import pytest

from common.access.claims import deletion_token
from common.access.credentials import read_credentials
from common.access.folder import SYSTEM
from common.access.keys import decode, digest_of, seed_of
from common.bus import Bus, Outgoing
from common.errors import Fatal
from common.messages import ControlTask
from common.resilience.crashpoints import OPERATORS
from marlaas.client import Client
from tests.marlaas.tasks import SPEC
from tests.marlaas.tenancy.commands import Operating
from tests.support.buses import HASTY
from tests.support.keyed import Keyed
from tests.support.paths import ROOT
from tests.support.scheduler.stages import World
from tests.support.waiting import eventually

VALID = "SELECT name, role FROM keys WHERE revoked_at IS NULL ORDER BY name"


@pytest.fixture
def operating(keyed: Keyed, keyed_world: World, tmp_path: Path) -> Operating:
    return Operating.of(keyed, tmp_path)


async def connect(operating: Operating, file: str) -> Bus:
    return await Bus.connect(operating.keyed.url, "client", creds=operating.folder / file, timings=HASTY)


def cancel(tenant: str = "acme") -> Outgoing:
    return Outgoing(f"jobs.cancel.{tenant}", ControlTask(task="a", tenant=tenant), f"cancel:{time.monotonic_ns()}")


async def test_every_command_of_the_page_does_what_it_says(operating: Operating, keyed_world: World) -> None:
    page = (ROOT / "docs" / "tenancy.md").read_text().partition("## Tenants and their keys")[2]  # before it: tests/e2e/test_first_bill.py
    commands = re.findall(r"^marlaas (.*?)(?: +#.*)?$", page, re.MULTILINE)
    assert {tuple(command.split()[:2]) for command in commands} == {
        *(("audit",), ("audit", "--tenant"), ("--creds", "new.creds")),
        *(("tenants", verb) for verb in ("create", "list", "show", "set", "suspend", "push")),
        *(("keys", verb) for verb in ("create", "list", "rotate", "revoke")),
    }
    for command in commands:
        await operating.done(*command.split())
    assert await keyed_world.rows(VALID) == [("laptop", "owner")]
    assert await keyed_world.rows("SELECT id, suspended_at, weight FROM tenants WHERE account IS NOT NULL") == [("acme", None, 2.0)]


async def test_limits_of_an_account_are_set_by_a_command_and_told_to_nats(operating: Operating, keyed_world: World) -> None:
    await operating.done("tenants", "create", "initech")
    shown = await operating.done("tenants", "show", "initech")
    assert re.search(r"max_connections +64 +64", shown)
    assert "updated in NATS: initech" in await operating.done("tenants", "set", "initech", "--limit", "max_connections=3")
    async with await operating.keyed.connect(SYSTEM) as system:
        token = decode(await system.accounts.token(operating.keyed.keys.tenant("initech").public) or "")
    assert (token["nats"]["limits"]["conn"], token["nats"]["limits"]["payload"]) == (3, 1_310_720)
    shown = await operating.done("tenants", "set", "initech", "--limit", "max_connections=default", "--limit", "max_tasks=4")
    assert re.search(r"max_connections +64 +64", shown)
    assert re.search(r"max_tasks +4 +no limit +0", shown)
    assert "there is no limit 'max_task'; there are priority_ceiling" in await operating.refused(
        "tenants", "set", "a", "--limit", "max_task=1"
    )
    assert "there is always a limit" in await operating.refused("tenants", "set", "initech", "--limit", "max_connections=none")


async def test_tenant_trains_with_a_key_that_a_command_made(operating: Operating, keyed_world: World) -> None:
    assert "is made" in await operating.done("tenants", "create", "initech")
    assert "is there already" in await operating.done("tenants", "create", "initech")
    await operating.done("keys", "create", "initech", "ci", "--role", "owner", "--days", "3", "--to", "ci.creds")
    file = operating.folder / "ci.creds"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list((operating.keyed.keys.folder / "pending").iterdir()), "the seed is in the holder's file only"
    async with Client.connect(operating.keyed.url, creds=file) as client:
        task = await client.submit({**SPEC, "tenant": "initech"})
        assert (await client.wait(task)).state == "finished"
    rows = "SELECT name, role, last_used_at IS NOT NULL, ends_at > now() + interval '2 days' FROM keys"
    assert await keyed_world.rows(rows) == [("ci", "owner", True, True)]
    assert "ci" in await operating.done("keys", "list", "initech")
    seeds = [re.search(r"SU[A-Z2-7]{56}", file.read_text())]
    dump = await keyed_world.rows("SELECT row_to_json(k)::text FROM keys k")
    assert seeds[0] is not None
    assert seeds[0][0] not in str(dump)


async def test_revoked_key_is_closed_at_once_and_others_go_on(operating: Operating) -> None:
    for name in ("one", "two"):
        await operating.done("tenants", "create", "acme")
        await operating.done("keys", "create", "acme", name, "--to", f"{name}.creds")
    async with await connect(operating, "one.creds") as one, await connect(operating, "two.creds") as two:
        await operating.done("keys", "revoke", "acme", "one")
        await eventually(lambda: not one.is_connected, 60)
        await two.publish(cancel())
        with pytest.raises(Fatal, match="it was revoked"):
            await connect(operating, "one.creds")
        await operating.done("tenants", "suspend", "acme")
        await eventually(lambda: not two.is_connected, 60)
    await operating.done("tenants", "suspend", "acme", "--end")
    async with await connect(operating, "two.creds") as two:
        await two.publish(cancel())
    assert "was revoked already" in await operating.done("keys", "revoke", "acme", "one")


async def test_successor_is_there_before_the_old_key_ends(operating: Operating, keyed_world: World) -> None:
    await operating.done("tenants", "create", "acme")
    await operating.done("keys", "create", "acme", "ci", "--role", "reader", "--to", "old.creds")
    old = read_credentials(operating.folder / "old.creds").public
    await operating.done("keys", "rotate", "acme", "ci", "--to", "new.creds", "--keep-old")
    for file in ("old.creds", "new.creds"):
        async with await connect(operating, file) as client:
            assert client.is_connected
    assert await keyed_world.rows(VALID) == [("ci", "reader")] * 2
    await operating.done("keys", "revoke", "acme", old)
    with pytest.raises(Fatal, match="it was revoked"):
        await connect(operating, "old.creds")
    async with await connect(operating, "new.creds") as client:
        assert client.is_connected


async def test_nats_is_made_to_agree_after_it_has_forgotten(operating: Operating) -> None:
    for name in ("acme", "globex"):
        await operating.done("tenants", "create", name)
        await operating.done("keys", "create", name, "ci", "--to", f"{name}.creds")
    await operating.done("keys", "create", "acme", "old", "--to", "old.creds")
    await operating.done("keys", "revoke", "acme", "old")
    assert "agrees" in await operating.done("tenants", "push")
    keys = operating.keyed.keys
    async with await operating.keyed.connect(SYSTEM) as system:
        await system.accounts.delete(deletion_token(keys.operator, [keys.tenant("acme").public], int(time.time())))
    with pytest.raises(Fatal):
        await connect(operating, "acme.creds")
    assert await operating.done("tenants", "push") == "updated in NATS: acme\n"
    async with await connect(operating, "acme.creds") as client:
        await client.publish(cancel())
    with pytest.raises(Fatal, match="it was revoked"):
        await connect(operating, "old.creds")
    lost = keys.tenant("globex").public
    keys.forget_tenant("globex")
    assert "none of tenant 'globex'" in await operating.refused("tenants", "push")
    renewed = await operating.done("tenants", "push", "--new-accounts", "--delete-others")
    assert renewed == f"updated in NATS: globex\ndeleted from NATS: {lost}\n"
    with pytest.raises(Fatal, match="refuses"):
        await connect(operating, "globex.creds")
    async with await connect(operating, "acme.creds") as client:
        await client.publish(cancel())
    await operating.keyed.push("stranger")
    stranger = keys.tenant("stranger").public
    assert f"unknown to PostgreSQL, kept: {stranger}" in await operating.done("tenants", "push")
    assert f"deleted from NATS: {stranger}" in await operating.done("tenants", "push", "--delete-others")
    async with await operating.keyed.connect(SYSTEM) as system:
        assert stranger not in await system.accounts.known()


@pytest.mark.parametrize("point", ["before_record", "before_creds"])
async def test_http_key_is_printed_once_also_by_a_command_that_was_killed(operating: Operating, keyed_world: World, point: str) -> None:
    """Killed after it was recorded, the command has told nobody its text; repeated, it prints that of the recorded key."""
    await operating.done("tenants", "create", "acme")
    command = "keys create acme app --http --role reader"
    killed = await operating.run(*command.split(), crash=point)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    if point == "before_creds":
        assert "made key 'app' with --http; repeat that one" in await operating.refused(
            *["keys", "create", "acme", "app", "--to", "app.creds"]
        )
    made = await operating.run(*command.replace("reader", "owner" if point == "before_creds" else "reader").split())
    text = made.stdout.removesuffix("\n")
    seed = seed_of(text)
    assert seed is not None
    assert (made.returncode, "printed once" in made.stderr, text in made.stderr) == (0, True, False)
    assert await keyed_world.rows("SELECT name, role, key, http_digest FROM keys") == [("app", "reader", seed.public, digest_of(text))]
    assert not list((operating.keyed.keys.folder / "pending").iterdir())
    assert "has a key 'app' already" in await operating.refused(*command.split())
    listed = await operating.done("keys", "list", "acme")
    assert re.search(r"app +HTTP +reader +valid", listed)
    assert text not in listed


async def test_http_key_is_written_to_a_file_rotated_and_revoked(operating: Operating, keyed_world: World) -> None:
    await operating.done("tenants", "create", "acme")
    assert "--to" in await operating.refused("keys", "create", "acme", "app")
    made = await operating.run("keys", "create", "acme", "app", "--http", "--days", "3", "--to", "app.key")
    file = operating.folder / "app.key"
    assert (made.returncode, made.stdout, stat.S_IMODE(file.stat().st_mode)) == (0, "", 0o600)
    old = seed_of(file.read_text().strip())
    assert "app.key is there already" in await operating.refused("keys", "create", "acme", "other", "--http", "--to", "app.key")
    killed = await operating.run("keys", "rotate", "acme", "app", crash="before_revoke")
    rotated = await operating.run("keys", "rotate", "acme", "app")
    new = seed_of(rotated.stdout.strip())
    assert old is not None
    assert new is not None
    assert (killed.stdout, rotated.returncode) == (rotated.stdout, 0)
    valid = "SELECT key FROM keys WHERE revoked_at IS NULL AND http_digest IS NOT NULL AND ends_at IS NOT NULL"
    assert await keyed_world.rows(valid) == [(new.public,)]
    await operating.done("keys", "revoke", "acme", "app")
    assert await keyed_world.rows(valid) == []
    await operating.done("keys", "create", "acme", "ci", "--to", "ci.creds")
    assert "is one for NATS, which is written to a file; name one with --to" in await operating.refused("keys", "rotate", "acme", "ci")


@pytest.mark.parametrize("point", OPERATORS)
async def test_command_that_was_killed_is_completed_by_repeating_it(operating: Operating, keyed_world: World, point: str) -> None:
    """Every command is killed at the point where it passes it, and repeated; what is there then does not depend on the kill."""
    killed = 0
    commands = [
        "tenants create initech",
        "keys create initech ci --role owner --to first.creds",
        "keys rotate initech ci --to second.creds",
        "keys create initech other --to other.creds",
        "keys revoke initech other",
        "tenants suspend initech",
        "tenants suspend initech --end",
    ]
    for command in commands:
        done = await operating.run(*command.split(), crash=point)
        if done.returncode != 0:
            assert done.returncode == -signal.SIGKILL, done
            killed += 1
            await operating.done(*command.split())
    assert killed == {"before_record": 4, "before_creds": 3, "before_push": 5, "before_revoke": 1}[point]
    assert await keyed_world.rows(VALID) == [("ci", "owner")]
    assert [row[0] for row in await keyed_world.rows("SELECT name FROM keys WHERE revoked_at IS NOT NULL ORDER BY name")] == ["ci", "other"]
    assert "agrees" in await operating.done("tenants", "push")
    assert not list((operating.keyed.keys.folder / "pending").iterdir())
    async with await connect(operating, "second.creds") as client:
        await client.publish(cancel("initech"))
    for file in ("first.creds", "other.creds"):
        with pytest.raises(Fatal, match="it was revoked"):
            await connect(operating, file)


async def test_wrong_input_is_answered_with_one_sentence(operating: Operating, tmp_path: Path) -> None:
    await operating.done("tenants", "create", "acme")
    await operating.done("keys", "create", "acme", "ci", "--role", "reader", "--to", "ci.creds")
    for arguments, sentence in [
        ("keys create nobody ci --to x.creds", "there is no tenant 'nobody'"),
        ("keys create globex ci --to x.creds", "there is no tenant 'globex'"),
        ("keys create acme ci --to x.creds", "tenant 'acme' has a key 'ci' already"),
        ("keys create acme new --to ci.creds", "ci.creds is there already"),
        ("keys create acme new --to nowhere/x.creds", "there is no folder nowhere"),
        ("keys create acme new --role admin --to x.creds", "a tenant's are owner, member and reader"),
        ("keys create acme new --role king --to x.creds", "'king' is no role"),
        ("keys create acme New --to x.creds", "'New' cannot be a key's name"),
        ("keys rotate acme gone --to x.creds", "tenant 'acme' has no valid key 'gone'"),
        ("keys revoke acme gone", "tenant 'acme' has no key 'gone'"),
        ("keys list nobody", "there is no tenant 'nobody'"),
        ("tenants suspend nobody", "there is no tenant 'nobody'"),
        ("tenants create Acme", "'Acme' cannot be a tenant's name"),
        ("tenants create admin", "'admin' cannot be a tenant's name"),
        (f"tenants list --keys {tmp_path}", "is no folder of signing keys"),
        ("--creds ci.creds cancel some-task", "no task 'some-task'"),
    ]:
        said = " ".join((await operating.refused(*arguments.split())).replace("│", " ").split())
        assert sentence in said, (arguments, said)
        assert not (operating.folder / "x.creds").exists()
    (operating.folder / "ci.creds").chmod(0o644)
    assert "chmod 600" in await operating.refused("--creds", "ci.creds", "ps")
