"""Webhooks from the event to the receiver: real NATS, PostgreSQL and HTTP."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from common.bus import Bus
from common.client_api.tenancy.webhooks import new_secret
from common.messages import Event, WebhookOf
from marlaas.client import Client, ClientError
from scheduler_svc.base import deleted
from scheduler_svc.base import webhook_deliveries as webhooks
from scheduler_svc.base.database import Database
from scheduler_svc.base.tables import webhooks as rows
from scheduler_svc.tenancy.webhooks.addresses import WebhookRules
from scheduler_svc.tenancy.webhooks.sender import Post, WebhookSender
from scheduler_svc.tenancy.webhooks.signing import key_of, seal
from tests.scheduler.webhooks.receiver import receiver
from tests.support.gateway.serving import client, gateway
from tests.support.scheduler.stages import Stages, World, running_world, spec
from tests.support.scheduler.webhooks import RULES
from tests.support.waiting import at_work, eventually

ACME = {"tenant": "acme"}


@pytest.fixture
async def world(bus: Bus, database_url: str) -> AsyncGenerator[World]:
    """Its scheduler takes jobs about receivers on this machine; `sending` sends to them."""
    stages = Stages(withheld=lambda group, member: group.task.startswith("slow"))
    async with running_world(bus, database_url, stages) as world:
        object.__setattr__(world.scheduler._context, "webhooks", RULES)  # pyright: ignore[reportPrivateUsage]
        object.__setattr__(world.scheduler._webhooks, "_look_every_s", 3600)  # pyright: ignore[reportPrivateUsage]
        yield world


@asynccontextmanager
async def sending(database: Database, *, pauses_s: tuple[float, ...] = (0.05,) * 9, timeout_s: float = 60.0) -> AsyncGenerator[None]:
    post = Post(RULES.policy, timeout_s=timeout_s)
    async with at_work(WebhookSender(database, post, RULES.sealing_key, pauses_s=pauses_s, look_every_s=0.05).run()):
        yield


async def happen(database: Database, event: str = "finished", tenant: str = "acme", task: str = "a", **data: Any) -> None:
    """Emit an event as the scheduler does."""
    async with database.transaction() as tx:
        tx.emit_event(tenant, task, event, data)


@pytest.fixture
async def made(database: Database) -> str:
    """Two tenants; returns a secret for a webhook."""
    async with database.transaction() as tx:
        await tx.connection.exec_driver_sql("INSERT INTO tenants (id) VALUES ('acme'), ('globex')")
    return new_secret()


async def hooked(database: Database, url: str, secret: str, *, tenant: str = "acme", key: bytes = RULES.sealing_key) -> None:
    """Make the webhook `pager`."""
    name = "pager"
    async with database.transaction() as tx:
        sealed = seal(key, (tenant, name), key_of(secret))
        await webhooks.put(tx.connection, tenant, name, url, ["finished", "failed", "budget"], "r", sealed, new_secret=True)


async def shown(database: Database, tenant: str = "acme") -> WebhookOf:
    async with database.statements() as connection:
        [found] = await webhooks.page(connection, rows.c.tenant == tenant, most=2)
    return found


async def outcome(database: Database, state: str = "delivered") -> Any:
    """The latest message, once it has that state."""

    async def is_there() -> bool:
        found = (await shown(database)).deliveries
        return bool(found) and found[0].state == state

    await eventually(is_there, 60)
    return (await shown(database)).deliveries[0]


# ------------------------------------------------------------------------------------------------------ by every door


async def test_owner_is_told_of_ends(world: World, database: Database, nats_url: str) -> None:
    await world.run("first")
    async with receiver() as there, gateway(world.bus, nats_url) as address, client(address) as door, sending(database):
        made = await door.put("/v1/webhooks/pager", params=ACME, json={"url": there.url})
        await world.run("a")
        await world.run("theirs", spec(tenant="globex"))
        await eventually(lambda: there.received, 60)
        await eventually(lambda: _is_delivered(door), 60)
        read = (await door.get("/v1/webhooks/pager", params=ACME)).json()
        again = await door.put("/v1/webhooks/pager", params=ACME, json={"url": there.url, "events": ["failed"]})
        await world.run("b")
        foreign = await door.get("/v1/webhooks/pager", params={"tenant": "globex"})
        gone = await door.delete("/v1/webhooks/pager", params=ACME)

    secret = made.json()["secret"]
    [got] = there.received
    assert got.path == "/hook?token=x"
    assert got.is_signed_by(secret)
    assert (got.content["type"], got.content["data"]["task"], got.content["data"]["tenant"]) == ("task.finished", "a", "acme")
    [delivery] = read["deliveries"]
    assert (delivery["id"], delivery["state"], delivery["status"]) == (got.headers["webhook-id"], "delivered", 204)
    assert "secret" not in read
    assert (again.json()["secret"], again.json()["events"]) == (None, ["failed"])
    assert foreign.status_code == 404
    assert (gone.status_code, gone.content) == (204, b"")
    for table in ("events", "webhooks", "audit"):
        assert secret not in str(await world.rows(f"SELECT * FROM {table}"))
        assert "token=x" not in str(await world.rows("SELECT * FROM events"))
    assert key_of(secret) not in (await world.rows("SELECT coalesce(max(secret::text), '')::bytea FROM webhooks"))[0][0]


async def _is_delivered(door: httpx.AsyncClient) -> bool:
    return (await door.get("/v1/webhooks/pager", params=ACME)).json()["deliveries"][0]["state"] == "delivered"


async def test_what_cannot_be_a_webhook(world: World, nats_url: str) -> None:
    await world.run("a")
    object.__setattr__(world.scheduler._context, "webhooks", WebhookRules())  # pyright: ignore[reportPrivateUsage]
    wrong = (
        "http://hooks.example.com/x", "https://127.0.0.1/x", "https://[::1]/", "https://[::ffff:10.0.0.1]/", "https://169.254.169.254/x",
        "https://10.1.2.3/", "https://localhost/", "https://me:secret@hooks.example.com/", "https:///x", "ftp://hooks.example.com",
        "https://hooks.example.com:99999/", "https://127.1/", "https://localhost./x",
        "https://hooks.example.com/#x", "https://a b/", "https://x/\r\nHost: y", "x" * 2000, 7, None,
    )  # fmt: skip
    async with gateway(world.bus, nats_url) as address, client(address) as door:
        answers = [await door.put("/v1/webhooks/pager", params=ACME, json={"url": url}) for url in wrong]
        events = [await door.put("/v1/webhooks/p", params=ACME, json={"url": "https://h.example.com", "events": on}) for on in ([], ["x"])]
        nobody = await door.put("/v1/webhooks/pager", params={"tenant": "never"}, json={"url": "https://hooks.example.com"})
        many = [await door.put(f"/v1/webhooks/n{i}", params=ACME, json={"url": "https://hooks.example.com"}) for i in range(11)]
    assert [answer.status_code for answer in answers] == [400] * len(wrong)
    assert {answer.status_code for answer in (*events, nobody)} == {400}
    assert [answer.status_code for answer in many] == [200] * 10 + [400]


async def test_client_sets_lists_and_deletes(world: World, nats_url: str) -> None:
    await world.run("a")
    async with Client.connect(nats_url, tenant="acme") as mine, receiver() as there:
        first = await mine.webhooks.set("pager", there.url, ["budget"])
        second = await mine.webhooks.set("pager", there.url, replace_secret=True)
        assert None not in (first.secret, second.secret)
        assert first.secret != second.secret
        assert [(one.name, one.url, one.waiting) for one in await mine.webhooks.all()] == [("pager", there.url, 0)]
        await mine.webhooks.delete("pager")
        with pytest.raises(ClientError, match="no webhook 'pager'"):
            await mine.webhooks.delete("pager")


# --------------------------------------------------------------------------------------------------------- the sender


async def test_receiver_that_fails_is_told_again_with_the_same_id(database: Database, made: str) -> None:
    async with receiver(b"HTTP/1.1 500 No\r\n\r\n", b"garbage\r\n", b"HTTP/1.1 429 Later\r\n\r\n") as there:
        await hooked(database, there.url, made)
        await happen(database)
        async with sending(database):
            found = await outcome(database)
    assert (found.attempts, found.status, found.reason) == (4, 204, "")
    assert {got.headers["webhook-id"] for got in there.received} == {found.id}
    assert len({got.body for got in there.received}) == 1
    assert all(got.is_signed_by(made) for got in there.received)


async def test_redirections_are_not_followed(database: Database, made: str) -> None:
    async with receiver() as secret, receiver(f"HTTP/1.1 307 Go\r\nLocation: {secret.url}\r\n\r\n".encode()) as there:
        await hooked(database, there.url, made)
        await happen(database)
        async with sending(database, pauses_s=()):
            found = await outcome(database, "given_up")
    assert (found.status, found.reason) == (307, "redirections are not followed")
    assert secret.received == []


async def test_huge_and_slow_answers_cost_nothing(database: Database, made: str) -> None:
    huge = b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 50_000_000
    async with receiver(huge, b"H" * 100_000, None) as there:
        await hooked(database, there.url, made)
        async with sending(database, pauses_s=()):
            await happen(database)
            assert (await outcome(database)).status == 200
            await happen(database)
            assert (await outcome(database, "given_up")).reason == "the host does not answer, or not by HTTP"
        async with sending(database, pauses_s=(), timeout_s=1.0):
            await happen(database, task="third")
            await eventually(lambda: _has(database, "no answer within 1 s"))


async def _has(database: Database, reason: str) -> bool:
    return any(one.reason == reason for one in (await shown(database)).deliveries)


async def test_receiver_that_was_away_is_told_later_and_gone_means_gone(database: Database, made: str) -> None:
    async with receiver() as there:
        port = there.port
    await hooked(database, there.url, made)
    await happen(database, reason="out of memory", event="failed")
    async with sending(database, pauses_s=(0.05,) * 200):
        await eventually(lambda: _has(database, "the host does not answer, or not by HTTP"), 60)
        async with receiver(b"HTTP/1.1 410 Gone\r\n\r\n", port=port) as back:
            found = await outcome(database, "given_up")
    assert found.status == 410
    assert back.received[0].content["data"]["reason"] == "out of memory"


async def test_one_of_many_replicas_sends_each_message_and_none_is_lost(database: Database, made: str) -> None:
    """The first one dies with a message in its hands."""
    async with receiver(None) as there:
        await hooked(database, there.url, made)
        await happen(database)
        async with sending(database):
            await eventually(lambda: there.received, 60)
        async with database.transaction() as tx:  # its minute passes
            await tx.connection.exec_driver_sql("UPDATE webhooks SET busy_until = now()")
        for number in range(19):
            await happen(database, task=f"t{number}")
        async with sending(database), sending(database), sending(database):
            await eventually(lambda: _none_waits(database), 60)
    ids = [got.headers["webhook-id"] for got in there.received]
    assert (len(ids), len(set(ids))) == (21, 20)


async def _none_waits(database: Database) -> bool:
    return (await shown(database)).waiting == 0


async def test_queue_is_bounded_and_history_is_short(database: Database, made: str) -> None:
    async with receiver() as there:
        await hooked(database, there.url, made)
        async with database.transaction() as tx:
            for number in range(webhooks.MAX_WAITING + 5):
                tx.emit_event("acme", f"t{number}", "finished")
        for _ in range(2):  # the ones beyond the bound of one transaction, and of all
            await happen(database)
        found = await shown(database)
        assert found.waiting <= webhooks.MAX_WAITING + 5
        assert found.dropped >= 2
        async with database.transaction() as tx:
            await tx.connection.exec_driver_sql("DELETE FROM webhook_deliveries WHERE id %% 10 <> 0")
        async with sending(database):
            await eventually(lambda: _none_waits(database), 120)
        async with database.statements() as connection:
            kept = (await connection.exec_driver_sql("SELECT count(*) FROM webhook_deliveries")).scalar_one()
    assert kept == webhooks.KEPT


async def test_slow_receiver_of_one_tenant_does_not_hold_up_another(database: Database, made: str) -> None:
    async with receiver(None, None) as slow, receiver() as quick:
        await hooked(database, slow.url, made)
        await hooked(database, quick.url, made, tenant="globex")
        for tenant in ("acme", "acme", "globex"):
            await happen(database, tenant=tenant)
        async with sending(database):
            await eventually(lambda: quick.received)
            assert len(slow.received) == 1, "one message of a webhook at a time"


async def _somebody_waits(database: Database) -> bool:
    async with database.statements() as connection:
        waiting = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')"
        return bool((await connection.exec_driver_sql(waiting)).scalar_one())


async def test_deletion_of_a_webhook_fails_no_event(database: Database, made: str) -> None:
    """The event is emitted while the webhook's deletion is not committed."""
    await hooked(database, "https://hooks.example.com", made)
    async with database.transaction() as tx:
        assert await webhooks.remove(tx.connection, "acme", "pager")
        emitting = asyncio.create_task(happen(database))
        await eventually(lambda: emitting.done() or _somebody_waits(database), 60)
        assert not emitting.done(), emitting
    await emitting
    async with database.statements() as connection:
        assert (await connection.exec_driver_sql("SELECT event FROM events")).all() == [("finished",)]
        assert (await connection.exec_driver_sql("SELECT id FROM webhook_deliveries")).all() == []


async def test_webhook_is_not_made_beside_its_tenants_deletion(world: World, database: Database, made: str, nats_url: str) -> None:
    """The job is handled while the mark of the tenant is not committed."""
    async with gateway(world.bus, nats_url) as address, client(address) as door:
        async with database.transaction() as tx:
            assert await deleted.begin_tenant(tx.connection, "acme", 1, "r")
            setting = asyncio.create_task(door.put("/v1/webhooks/pager", params=ACME, json={"url": "https://hooks.example.com"}))
            await eventually(lambda: setting.done() or _somebody_waits(database), 60)
            assert not setting.done(), setting
        refused = await setting
    assert (refused.status_code, "'acme' is deleted" in refused.text) == (400, True)
    async with database.statements() as connection:
        assert (await connection.exec_driver_sql("SELECT name FROM webhooks")).all() == []


async def test_end_of_a_tenant_leaves_no_webhook(database: Database, made: str) -> None:
    async with database.transaction() as tx:
        assert await deleted.begin_tenant(tx.connection, "acme", 1, "r")
    await hooked(database, "https://hooks.example.com", made)
    await hooked(database, "https://hooks.example.com", made, tenant="globex")
    async with database.transaction() as tx:
        assert await deleted.finish_tenant(tx.connection, "acme") is not None
    async with database.statements() as connection:
        assert (await connection.exec_driver_sql("SELECT tenant FROM webhooks")).all() == [("globex",)]


async def test_secret_sealed_by_another_key_is_a_reason(database: Database, made: str) -> None:
    async with receiver() as there:
        await hooked(database, there.url, made, key=b"another")
        await happen(database)
        async with sending(database, pauses_s=()):
            assert "sealed by another key" in (await outcome(database, "given_up")).reason
    assert there.received == []


async def test_budget_is_told_when_it_is_reported_and_not_when_it_is_set(database: Database, made: str) -> None:
    await hooked(database, "http://127.0.0.1:1/", made)
    await happen(database, "budget", task="none", request="r", period="day")
    assert (await shown(database)).waiting == 0
    await happen(database, "budget", task="none", reported="nearly", period="day")
    await happen(database, "step")
    await happen(database, tenant="globex")
    assert (await shown(database)).waiting == 1
    assert webhooks.wanted(Event(tenant="t", task="a", event="failed", at_s=1.0))
