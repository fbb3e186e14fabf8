"""HTTP keys from the command that makes them to the request that they open, on a real NATS and PostgreSQL."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from common import streams
from common.access.keys import Kind, Seed, digest_of, http_key, seed_of
from common.bus import Bus, Outgoing
from common.client_api.errors import ClientError
from common.errors import Unavailable
from common.messages import ControlTask, HttpKey
from common.runtime.health import Health
from common.runtime.service import Running
from common.streams import HTTP_KEYS_BUCKET
from gateway_svc.access import HttpKeys, OpenAccess, Unauthorized
from gateway_svc.service import serve
from gateway_svc.settings import GatewaySettings
from marlaas.stack import servers
from marlaas.tenancy import accounts, keys, recording
from marlaas.tenancy.accounts import delete_with_account
from marlaas.tenancy.keys import Receiver
from scheduler_svc.reconcile import accept
from scheduler_svc.upkeep.deletion import sweeps
from tests.support.gateway.entering import Entering, asks, entering
from tests.support.gateway.serving import client
from tests.support.keyed import Keyed
from tests.support.scheduler.canaries import in_streams, in_tables
from tests.support.scheduler.stages import World
from tests.support.servers import running
from tests.support.waiting import at_work, eventually, eventually_equals

WITHIN_S = 1.0
"""Time in which a revoked key is to be closed; asserted of the quickest, as other tests run beside."""
GARBAGE = (
    None,
    "",
    "mk-",
    "mk-" + "A" * 42,
    "mk-" + "A" * 44,
    "mk-" + "A" * 42 + "B",
    "mk-" + "é" * 43,
    "sk-" + "A" * 43,
    "mk-" + "A" * 43 + "\n",
)


@pytest.fixture
async def gateway(keyed: Keyed, keyed_world: World) -> AsyncIterator[Entering]:
    async with entering(keyed) as made:
        for tenant in ("acme", "globex"):
            await made.tenant(tenant)
        yield made


async def refused(gateway: Entering, bearer: str | None) -> str:
    """What is said to a caller whose key is not taken."""
    with pytest.raises(Unauthorized) as raised:
        async with gateway.access.entered(bearer):
            pass
    return str(raised.value)


def cancel(tenant: str) -> Outgoing:
    return Outgoing(f"jobs.cancel.{tenant}", ControlTask(task="a", tenant=tenant), f"cancel:{time.monotonic_ns()}")


def test_each_seed_has_one_text_and_each_text_one_seed() -> None:
    for _ in range(200):
        seed = Seed.new(Kind.USER)
        text = http_key(seed)
        found = seed_of(text)
        assert found is not None
        assert (len(text), found.public, http_key(found)) == (46, seed.public, text)
        others = [text[:-1] + last for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" if last != text[-1]]
        assert all((other := seed_of(changed)) is None or other.public != seed.public for changed in others)
    assert [seed_of(text) for text in GARBAGE if text is not None] == [None] * (len(GARBAGE) - 1)


async def test_key_opens_what_its_role_permits_and_nats_refuses_the_rest(gateway: Entering) -> None:
    member, reader = await gateway.key("acme", "m"), await gateway.key("acme", "r", "reader")
    admin = await gateway.key("admin", "a", "admin")
    async with gateway.access.entered(member) as caller:
        assert (caller.tenant, caller.role, caller.ended.is_set()) == ("acme", "member", False)
        assert (await asks(caller.door)).tasks == []
        await caller.door.publish(cancel("acme"))
        with pytest.raises(ClientError, match="forbids"):
            await asks(caller.door, tenant="globex")
        with pytest.raises(ClientError, match="may not act for tenant 'globex'"):
            await caller.door.publish(cancel("globex"))
    async with gateway.access.entered(reader) as caller:
        assert (await asks(caller.door)).tasks == []
        with pytest.raises(ClientError, match="role reader may not cancel"):
            await caller.door.publish(cancel("acme"))
    async with gateway.access.entered(admin) as caller:
        assert (caller.tenant, caller.role) == (None, "admin")
        assert (await asks(caller.door)).tasks == []
        await caller.door.publish(cancel("globex"))


async def test_whatever_is_no_valid_key_is_told_the_same(gateway: Entering) -> None:
    revoked = await gateway.key("acme", "revoked")
    await keys.revoke_key(gateway.operator, "acme", "revoked")
    await eventually(lambda: gateway.keys.find(digest_of(revoked)) is None)
    said = {await refused(gateway, bearer) for bearer in (*GARBAGE, http_key(Seed.new(Kind.USER)), revoked)}
    assert said == {"no valid key"}
    assert gateway.access.connections == 0


async def test_revoked_key_is_closed_within_a_second(keyed: Keyed, keyed_world: World) -> None:
    """By what NATS tells: the keys are not read again."""
    took: list[float] = []
    async with entering(keyed, reread_s=3600.0) as gateway:
        await gateway.tenant("acme")
        for number in range(20):
            text = await gateway.key("acme", f"k{number}")
            async with gateway.access.entered(text) as caller:
                await asks(caller.door)
                revoking = asyncio.create_task(keys.revoke_key(gateway.operator, "acme", f"k{number}"))
                began = time.monotonic()
                await asyncio.wait_for(caller.ended.wait(), 60)
                took.append(time.monotonic() - began)
                assert await refused(gateway, text) == "no valid key"
                await revoking
        print(f"closed after the command began: median {statistics.median(took):.3f} s, slowest {max(took):.3f} s")
        assert min(took) < WITHIN_S
        assert gateway.access.connections == 0
        assert await gateway.stored() == {}


async def test_revocation_that_only_nats_has_heard_of_ends_the_callers(gateway: Entering, keyed_world: World) -> None:
    """As when the scheduler's outbox waits: NATS closes the connection by itself."""
    text = await gateway.key("acme", "ci")
    async with gateway.access.entered(text) as caller:
        await keyed_world.execute("UPDATE keys SET revoked_at = now()")
        await accounts.push_tenant(gateway.operator, "acme")
        await asyncio.wait_for(caller.ended.wait(), 30)
    assert await refused(gateway, text) == "no valid key"


async def test_revocation_that_only_postgres_has_heard_of_ends_the_callers(gateway: Entering) -> None:
    """As when the command is interrupted before it tells NATS: the bucket is enough."""
    text = await gateway.key("acme", "ci")
    async with gateway.access.entered(text) as caller:
        await recording.record(gateway.operator.door, "acme", revoke=[caller.key])
        await asyncio.wait_for(caller.ended.wait(), 30)
        assert await refused(gateway, text) == "no valid key"


async def test_suspended_tenant_is_closed_and_taken_again(gateway: Entering) -> None:
    text, other = await gateway.key("acme", "ci"), await gateway.key("globex", "ci")
    async with gateway.access.entered(text) as caller, gateway.access.entered(other) as neighbour:
        await accounts.suspend_tenant(gateway.operator, "acme", suspended=True)
        await asyncio.wait_for(caller.ended.wait(), 30)
        await asks(neighbour.door)
        assert not neighbour.ended.is_set()
    assert await refused(gateway, text) == "no valid key"
    assert {one.tenant for one in (await gateway.stored()).values()} == {"globex"}
    await accounts.suspend_tenant(gateway.operator, "acme", suspended=False)
    await gateway.is_told(text)
    async with gateway.access.entered(text) as caller:
        await asks(caller.door)


async def test_deleted_tenant_leaves_no_entry(gateway: Entering) -> None:
    text = await gateway.key("acme", "ci")
    async with gateway.access.entered(text) as caller:
        await delete_with_account(gateway.operator, "acme", 60)
        await asyncio.wait_for(caller.ended.wait(), 30)
    assert await gateway.operator.door._bus.kv.keys(HTTP_KEYS_BUCKET) == set()
    assert await refused(gateway, text) == "no valid key"


async def test_key_ends_at_its_date(keyed: Keyed, keyed_world: World) -> None:
    ahead = 0.0
    async with entering(keyed, clock=lambda: time.time() + ahead) as gateway:
        await gateway.tenant("acme")
        text = await gateway.key("acme", "ci", ends=datetime.now(UTC) + timedelta(days=1))
        async with gateway.access.entered(text) as caller:
            ahead = 86_000.0
            await asks(caller.door)
            assert not caller.ended.is_set()
            ahead = 86_401.0
            await asyncio.wait_for(caller.ended.wait(), 30)
        assert await refused(gateway, text) == "no valid key"


async def test_absent_nats_is_no_fault_of_the_key(gateway: Entering, keyed: Keyed) -> None:
    used, unused = await gateway.key("acme", "used"), await gateway.key("acme", "unused")
    async with gateway.access.entered(used) as caller:
        keyed.process.kill()
        keyed.process.wait()
        await eventually(lambda: not gateway.bus.is_connected)
        usual, gateway.access._nats = gateway.access._nats, replace(gateway.access._nats, connect_s=0.5)
        for text in (unused, http_key(Seed.new(Kind.USER))):
            with pytest.raises(Unavailable):
                async with gateway.access.entered(text):
                    pass
        gateway.access._nats = usual
        assert await refused(gateway, "mk-garbage") == "no valid key"
        assert not caller.ended.is_set()
        with running(keyed.command, keyed.port, Path(keyed.keys.folder.parent) / "nats.log"):
            await eventually(lambda: gateway.bus.is_connected and caller.door._bus.is_connected)
            await asks(caller.door)
            async with gateway.access.entered(unused) as caller:
                await asks(caller.door)
            assert gateway.access.connections == 2


async def test_no_key_is_called_unknown_before_the_keys_are_read(gateway: Entering) -> None:
    with pytest.raises(Unavailable):
        HttpKeys(gateway.bus).find("0" * 64)


async def test_entries_that_others_put_there_open_nothing(gateway: Entering, keyed_world: World) -> None:
    """An entry opens only what the token that it holds does, and only to the holder of its seed."""
    text, seed = await gateway.key("acme", "ci"), Seed.new(Kind.USER)
    [real] = (await gateway.stored()).values()
    forged = HttpKey(
        digest=digest_of(http_key(seed)), tenant="globex", role="owner", name="x", key=seed.public, ends=None, token=real.token
    )
    nonsense = forged.model_copy(update={"digest": digest_of("mk-" + "A" * 43), "token": "a.b.c"})
    for entry in (forged, nonsense):
        await keyed_world.bus.kv.put(HTTP_KEYS_BUCKET, entry.digest, entry)
    await gateway.is_told(http_key(seed))
    assert await refused(gateway, http_key(seed)) == "no valid key"
    await gateway.is_told("mk-" + "A" * 43)
    assert await refused(gateway, "mk-" + "A" * 43) == "no valid key"
    async with gateway.access.entered(text) as caller:
        await asks(caller.door)


async def test_entry_that_is_lost_without_a_word_is_noticed(gateway: Entering, keyed_world: World) -> None:
    text = await gateway.key("acme", "ci")
    await keyed_world.bus.kv.remove(HTTP_KEYS_BUCKET, [digest_of(text)])
    await eventually(lambda: gateway.keys.find(digest_of(text)) is None, 60)
    other = await gateway.key("acme", "other")
    async with gateway.access.entered(other) as caller:
        await asks(caller.door)


async def test_old_entries_and_markers_are_removed_and_valid_ones_stay(gateway: Entering, keyed_world: World) -> None:
    ends = datetime.now(UTC) + timedelta(days=1)
    texts = {name: await gateway.key("acme", name, ends=ends) for name in ("kept", "over", "gone", "fresh")}
    for name in ("gone", "fresh"):
        await keys.revoke_key(gateway.operator, "acme", name)
    await keyed_world.execute("UPDATE keys SET revoked_at = now() - interval '2 hours' WHERE name = 'gone'")
    await keyed_world.execute("UPDATE keys SET ends_at = now() - interval '2 hours' WHERE name = 'over'")
    assert await sweeps.remove_ended_keys(keyed_world.database, keyed_world.bus) == 2
    assert await keyed_world.bus.kv.keys(HTTP_KEYS_BUCKET) == {digest_of(texts[name]) for name in ("kept", "fresh")}
    assert await sweeps.remove_ended_keys(keyed_world.database, keyed_world.bus) == 0


async def test_full_bucket_refuses_keys_and_holds_up_nothing(gateway: Entering, monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler_svc.tenancy import access

    monkeypatch.setattr(access, "FULL_SHARE", 0.0)
    with pytest.raises(ClientError, match="no room for another HTTP key; revoke some, or raise MARLAAS_NATS_STREAMS_BYTES"):
        await gateway.key("acme", "ci")
    await keys.create_key(
        gateway.operator, "acme", "nats", "member", Receiver(Path(gateway.operator.signing.folder) / "x.creds", print), None
    )


async def test_text_of_a_key_is_in_no_table_stream_and_log(
    gateway: Entering, keyed: Keyed, keyed_world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    text = await gateway.key("acme", "ci", "owner")
    async with gateway.access.entered(text) as caller:
        await asks(caller.door)
        await caller.door.publish(cancel("acme"))
        with pytest.raises(ClientError) as forbidden:
            await caller.door.publish(cancel("globex"))
    await keys.revoke_key(gateway.operator, "acme", "ci")
    await eventually(lambda: gateway.keys.find(digest_of(text)) is None)
    await refused(gateway, text)
    out = "".join(capsys.readouterr()) + str(forbidden.value) + repr(caller) + repr(caller.door.key)
    seed = seed_of(text)
    assert seed is not None
    for secret in (text, text.removeprefix("mk-"), seed.reveal()):
        assert await in_tables(keyed_world, secret) == set()
        assert in_streams(keyed.log.parent / "nats", secret) == set()
        assert secret not in out
        assert secret not in keyed.log.read_text()
    assert await in_tables(keyed_world, digest_of(text)) == {"keys"}, "the search finds what is there"
    await eventually(lambda: f"KV_{HTTP_KEYS_BUCKET}" in in_streams(keyed.log.parent / "nats", digest_of(text)), 60)


async def test_keys_are_told_again_after_nats_has_lost_them(keyed: Keyed, keyed_world: World, tmp_path: Path) -> None:
    """Its store is new, and the operator reconciles: the bucket has the valid keys again, and no other."""
    async with entering(keyed) as gateway:
        await gateway.tenant("acme")
        kept, gone = await gateway.key("acme", "kept"), await gateway.key("acme", "gone")
        await keys.revoke_key(gateway.operator, "acme", "gone")
        bus = keyed_world.bus
        stranger = (await gateway.stored())[digest_of(kept)].model_copy(update={"digest": "0" * 64})
        await eventually_equals(lambda: keyed_world.rows("SELECT count(*) FROM outbox"), [(0,)])
        for bucket in (streams.HISTORY_BUCKET, HTTP_KEYS_BUCKET):
            await bus.kv.remove(bucket, await bus.kv.keys(bucket))
        await bus.kv.put(HTTP_KEYS_BUCKET, stranger.digest, stranger)
        await eventually(lambda: gateway.keys.find("0" * 64) is not None and gateway.keys.find(digest_of(kept)) is None, 60)
        assert await accept(keyed_world.database, bus) is not None
        await gateway.is_told(kept)
        await eventually(lambda: gateway.keys.find("0" * 64) is None, 60)
        assert set(await gateway.stored()) == {digest_of(kept)}
        assert await refused(gateway, gone) == "no valid key"
        async with gateway.access.entered(kept) as caller:
            await asks(caller.door)


async def test_request_with_a_key_is_answered_by_http_and_without_one_refused(gateway: Entering, keyed: Keyed) -> None:
    text, port = await gateway.key("acme", "ci"), servers.free_port()
    settings = GatewaySettings(port=port, drain_s=1.0, nats_url=keyed.url, nats_creds=keyed.keys.credentials("gateway"))
    async with at_work(serve(Running(settings, gateway.bus, Health()))), client(f"http://127.0.0.1:{port}") as http:

        async def answers(key: str) -> int:
            with suppress(httpx.HTTPError):
                return (await http.get("/v1/tasks", headers={"Authorization": f"Bearer {key}"} if key else {})).status_code
            return 0

        await eventually_equals(lambda: answers(text), 200, 60)
        assert [await answers(key) for key in ("", "mk-garbage", http_key(Seed.new(Kind.USER)))] == [401] * 3
        await keys.revoke_key(gateway.operator, "acme", "ci")
        await eventually_equals(lambda: answers(text), 401, 30)


async def test_server_without_keys_takes_everybody_as_admin(bus: Bus, nats_url: str) -> None:
    access = OpenAccess(bus, nats_url)
    for bearer in (None, "mk-garbage"):
        async with access.entered(bearer) as caller:
            assert (caller.tenant, caller.role, caller.key, caller.ended.is_set()) == (None, "admin", "", False)
            assert caller.door.key is None
