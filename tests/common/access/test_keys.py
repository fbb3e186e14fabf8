"""Keys on a real server: what is permitted, refused, revoked and ended, and what the user is told."""

import asyncio
import base64
import json
import stat
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nats
import pytest

from common import streams
from common.access.claims import EVERYONE, SUSPENDED_UNTIL_S, AccountLimits, deletion_token
from common.access.credentials import SEED, TOKEN, credentials_of, read_credentials
from common.access.folder import SYSTEM, issue_service_keys, open_folder, open_or_make, server_configuration
from common.access.keys import Kind, Seed, decode, encode
from common.bus import Bus, Outgoing
from common.errors import Fatal, Forbidden, KeyRefused, Reject
from common.messages import ControlTask
from marlaas.stack import servers
from tests.support.buses import HASTY
from tests.support.keyed import DEPLOYMENT, Keyed, keyed_server
from tests.support.servers import running
from tests.support.waiting import eventually


def cancel(subject: str, tenant: str = "acme") -> Outgoing:
    return Outgoing(subject, ControlTask(task="a", tenant=tenant, reason=""), f"cancel:{subject}")


async def connect(server: Keyed, creds: Path | None) -> Bus:
    return await Bus.connect(server.url, "client", creds=creds, timings=HASTY)


async def test_job_is_stored_once_and_names_the_key_that_sent_it(keyed: Keyed) -> None:
    async with await connect(keyed, keyed.key("acme", "member")) as client, await keyed.connect("scheduler") as scheduler:
        assert client.key is not None
        subject = f"jobs.cancel.acme.{client.key.public}"
        assert [await client.publish(cancel(subject)) for _ in range(2)] == [streams.FIRST_OWN_JOB] * 2
        assert await scheduler.own_jobs.waiting() == {"acme": 1, "globex": 0}


@pytest.mark.parametrize(
    ("role", "subject", "reason"),
    [
        ("reader", "jobs.cancel.acme", "role reader may not cancel; ask an owner of 'acme'"),
        ("member", "jobs.delete.acme", "role member may not delete; ask an owner of 'acme'"),
        ("owner", "jobs.submit.globex", r"\(owner of 'acme'\) may not act for tenant 'globex'"),
        ("owner", "weight-updated.tiny.a", "role owner may not publish weight-updated.tiny.a"),
        ("owner", "$JS.API.STREAM.DELETE.JOBS", r"may not publish \$JS.API.STREAM.DELETE.JOBS"),
    ],
)
async def test_user_is_told_what_the_key_may_not_do_and_stays_connected(keyed: Keyed, role: str, subject: str, reason: str) -> None:
    async with await connect(keyed, keyed.key("acme", role)) as client:  # type: ignore[arg-type]
        with pytest.raises(Forbidden, match=reason):
            await asyncio.wait_for(client.publish(cancel(subject)), timeout=60)
        with pytest.raises(Forbidden, match=reason):  # as the door for clients publishes
            await asyncio.wait_for(client.unless_refused(subject, client.publish(cancel(subject))), timeout=60)
        assert client.is_connected


async def test_revoked_key_is_offline_at_once_and_others_of_the_tenant_stay(keyed: Keyed) -> None:
    one, other = keyed.key("acme", "owner"), keyed.key("acme", "owner")
    async with await connect(keyed, one) as revoked, await connect(keyed, other) as kept:
        await keyed.revoke("acme", read_credentials(one).public)
        await eventually(lambda: not revoked.is_connected)
        with pytest.raises(Fatal, match="it was revoked"):
            await revoked.publish(cancel("jobs.cancel.acme"))
        assert await kept.publish(cancel("jobs.cancel.acme")) == streams.FIRST_OWN_JOB
    with pytest.raises(Fatal, match=r"refuses key '.*' \(owner of 'acme'\): it was revoked"):
        await connect(keyed, one)


async def test_key_in_memory_is_as_good_as_its_file_and_shows_no_secret(keyed: Keyed) -> None:
    path = keyed.key("acme", "member")
    text = path.read_text()
    token, secret = TOKEN.search(text), SEED.search(text)
    assert token is not None
    assert secret is not None
    key, seed = credentials_of(token[1], Seed(secret[1])), Seed(secret[1])
    assert replace(key, source=path) == read_credentials(path)
    assert secret[1] not in repr(key)
    assert token[1] not in repr(key)
    path.unlink()
    async with await Bus.connect(keyed.url, "client", creds=key, timings=HASTY) as client:
        assert await client.publish(cancel(f"jobs.cancel.acme.{key.public}")) == streams.FIRST_OWN_JOB
        await keyed.revoke("acme", key.public)
        await eventually(lambda: not client.is_connected)
    with pytest.raises(KeyRefused, match="it was revoked"):
        await Bus.connect(keyed.url, "client", creds=key, timings=HASTY)
    for wrong, of in [(token[1], Seed.new(Kind.USER)), ("a.b.c", seed), ("", seed), ("a.e30.c", seed)]:
        with pytest.raises(ValueError, match="token"):
            credentials_of(wrong, of)


async def test_suspended_tenant_is_offline_until_it_is_resumed(keyed: Keyed) -> None:
    key = keyed.key("acme", "owner")
    async with await connect(keyed, key) as client, await connect(keyed, keyed.key("globex", "owner")) as other:
        keyed.revoked["acme"] = {EVERYONE: SUSPENDED_UNTIL_S}
        await keyed.push("acme")
        await eventually(lambda: not client.is_connected)
        assert other.is_connected
    with pytest.raises(Fatal, match="refuses key"):
        await connect(keyed, keyed.key("acme", "owner"))
    keyed.revoked["acme"] = {}
    await asyncio.sleep(1.1)  # tokens of accounts are compared by the second in which they were made
    await keyed.push("acme")
    async with await connect(keyed, key) as client:
        assert await client.publish(cancel("jobs.cancel.acme")) == streams.FIRST_OWN_JOB


async def test_key_with_an_end_is_refused_after_it_and_says_so(keyed: Keyed) -> None:
    with pytest.raises(Fatal, match=r"ended on 20\d\d-\d\d-\d\d .* ask for a new one"):
        await connect(keyed, keyed.key("acme", "owner", end_s=int(time.time()) - 1))
    connected: list[Bus] = []

    async def before_it_ends() -> bool:
        """A key that ends in a second or two may end before a slow machine has connected with it."""
        with suppress(Fatal):
            connected.append(await connect(keyed, keyed.key("acme", "owner", end_s=int(time.time()) + 2)))
        return bool(connected)

    await eventually(before_it_ends)
    async with connected[0] as client:
        await eventually(lambda: not client.is_connected)
        with pytest.raises(Fatal, match="ended on"):
            await client.publish(cancel("jobs.cancel.acme"))


async def test_no_key_and_a_key_of_another_deployment_are_refused(keyed: Keyed, tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="requires a key; name its file with --creds"):
        await connect(keyed, None)
    other = replace(keyed, keys=open_or_make(tmp_path / "other"), revoked={})
    other.keys.new_tenant("acme")
    (other.keys.folder / "creds").mkdir()
    with pytest.raises(Fatal, match="or it is of another deployment"):
        await connect(other, other.key("acme", "owner"))


async def test_server_with_passwords_says_that_it_takes_no_key(keyed: Keyed, tmp_path: Path) -> None:
    port = servers.free_port()
    command = servers.nats_command(tmp_path / "old", port, accounts="authorization { user: marlaas, password: secret }\n")
    with running(command, port, tmp_path / "old.log"), pytest.raises(Fatal, match="asks for a user and a password, not for a key"):
        await Bus.connect(servers.nats_url(port), "client", creds=keyed.key("acme", "owner"), timings=HASTY)


async def test_key_is_not_used_in_the_clear_beyond_this_machine(keyed: Keyed) -> None:
    with pytest.raises(Fatal, match=r"reached without TLS.*--insecure"):
        await Bus.connect("nats://198.51.100.7:4222", "client", creds=keyed.key("acme", "owner"))


async def test_limits_of_an_account_are_the_servers(keyed: Keyed) -> None:
    await asyncio.sleep(1.1)  # as above
    await keyed.push("acme", AccountLimits(connections=1))
    async with await connect(keyed, keyed.key("acme", "owner")), await connect(keyed, keyed.key("globex", "owner")):
        second = Bus.connect(keyed.url, "client", creds=keyed.key("acme", "owner"), timings=HASTY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(second, timeout=1.0)


async def test_connections_and_message_bytes_are_taken_up_to_the_limit_and_no_further(keyed: Keyed) -> None:
    await asyncio.sleep(1.1)  # as above
    await keyed.push("acme", AccountLimits(connections=2, message_bytes=2_000))
    closed = asyncio.Event()

    async def on_closed() -> None:
        closed.set()

    file = str(keyed.key("acme", "owner"))
    client = await nats.connect(keyed.url, user_credentials=file, allow_reconnect=False, closed_cb=on_closed, connect_timeout=60)
    async with await connect(keyed, keyed.key("acme", "owner")):
        third = Bus.connect(keyed.url, "client", creds=keyed.key("acme", "owner"), timings=HASTY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(third, timeout=1.0)
        try:
            for size in (1_999, 2_000):
                await client.publish("jobs.cancel.acme", b"x" * size)
                await client.flush()
            assert not closed.is_set()
            await client.publish("jobs.cancel.acme", b"x" * 2_001)
            await asyncio.wait_for(closed.wait(), timeout=60)
        finally:
            await client.close()


async def test_deleted_account_is_forgotten_and_its_clients_closed(keyed: Keyed) -> None:
    account = keyed.keys.tenant("acme").public
    async with await keyed.connect(SYSTEM) as system, await connect(keyed, keyed.key("acme", "owner")) as client:
        assert account in await system.accounts.known()
        assert decode(await system.accounts.token(account) or "")["name"] == "acme"
        await system.accounts.delete(deletion_token(keyed.keys.operator, [account], int(time.time())))
        await eventually(lambda: not client.is_connected)
        assert account not in await system.accounts.known()
        with pytest.raises(Reject, match="NATS refuses to delete an account"):
            await system.accounts.delete(deletion_token(Seed.new(Kind.OPERATOR), [account], int(time.time())))


async def test_accounts_are_kept_over_a_restart(tmp_path: Path) -> None:
    async with keyed_server(tmp_path) as before:
        key = before.key("acme", "owner")
    accounts = server_configuration(before.keys, tmp_path / "nats" / "accounts")
    with running(servers.nats_command(tmp_path / "nats", before.port, accounts=accounts), before.port, tmp_path / "nats.log"):
        async with await connect(before, key) as client:
            assert await client.publish(cancel("jobs.cancel.acme")) == streams.FIRST_OWN_JOB


# ------------------------------------------------------------------------------------------------------- without a server


def test_token_is_refused_when_one_byte_of_it_was_changed() -> None:
    seed = Seed.new(Kind.ACCOUNT)
    token = encode(seed, {"sub": "x", "iat": 1})
    assert decode(token)["iss"] == seed.public
    head, body, signature = token.split(".")
    forged = base64.urlsafe_b64encode(json.dumps({**decode(token), "sub": "y"}).encode()).rstrip(b"=").decode()
    for wrong in (f"{head}.{forged}.{signature}", f"{head}.{body}.{signature[:-4]}AAAA", "", "a.b.c"):
        with pytest.raises(ValueError, match="no signed token"):
            decode(wrong)


def test_seed_shows_its_public_key_only() -> None:
    seed = Seed.new(Kind.USER)
    assert seed.reveal() not in f"{seed} {seed!r} {vars(seed)['_pair']!r}"
    assert seed.public in repr(seed)
    with pytest.raises(Fatal, match="no NATS seed"):
        Seed("SUABC")


def test_folder_and_files_are_their_owners_alone(tmp_path: Path) -> None:
    keys = open_or_make(tmp_path / "keys")
    keys.new_tenant("acme")
    issue_service_keys(keys, DEPLOYMENT)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [keys.folder, *keys.folder.rglob("*")]}
    assert set(modes.values()) == {0o700, 0o600}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items())
    before = read_credentials(keys.credentials("env")).public
    issue_service_keys(open_or_make(tmp_path / "keys"), DEPLOYMENT)
    assert read_credentials(keys.credentials("env")).public == before, "a key that exists is kept"
    keys.credentials("env").chmod(0o640)
    with pytest.raises(Fatal, match=r"can be read by other users .*chmod 600 .*env\.creds"):
        read_credentials(keys.credentials("env"))
    keys.folder.chmod(0o755)
    with pytest.raises(Fatal, match="chmod 700"):
        open_folder(keys.folder)


@pytest.mark.parametrize("name", ["admin", "../operator", "A", "", "a.b", "*", ">"])
def test_no_tenant_has_such_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(Fatal, match="cannot be a tenant's name"):
        open_or_make(tmp_path / "keys").new_tenant(name)


def test_file_that_is_no_key_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.creds"
    with pytest.raises(Fatal, match="there is no readable key"):
        read_credentials(path)
    path.touch(mode=0o600)
    with pytest.raises(Fatal, match="is no creds file"):
        read_credentials(path)


async def test_keys_of_a_folder_without_the_operators_are_not_made_anew(tmp_path: Path) -> None:
    keys = open_or_make(tmp_path / "keys")
    keys.new_tenant("acme")
    (keys.folder / "operator.seed").unlink()
    with pytest.raises(Fatal, match="restore it from its backup"):
        open_or_make(tmp_path / "keys")
