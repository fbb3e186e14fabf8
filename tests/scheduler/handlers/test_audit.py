"""Every job leaves its row in the audit, with what it did, and a refusal its kind."""

import hashlib
from pathlib import Path
from typing import Any

from common import streams
from common.bus import Bus, Outgoing
from common.client_api.tenancy.webhooks import new_secret
from common.messages import (
    AdapterAnswer,
    AuditAnswer,
    AuditLine,
    ChunkAnswer,
    ControlTask,
    DeleteAlias,
    DeletePackage,
    DeleteTenant,
    DeleteWebhook,
    GroupContext,
    Message,
    MovePool,
    NewKey,
    PreviewTask,
    PruneTasks,
    ResendLetter,
    SetAccess,
    SetAlias,
    SetBudget,
    SetPrice,
    SetTenant,
    SetWebhook,
    SubmitTask,
    UploadFile,
    UploadPackage,
)
from common.messages.verbs import JOBS
from scheduler_svc.base.audit import DOWNLOADS
from tests.support.scheduler.asking import Asker, asker, world_with_blobs
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

OWNER, KEY, NEXT = ("U" + letter * 55 for letter in "ABC")
ACCOUNT = "A" + "B" * 55
WHEEL = b"the bytes of a package"
DIGEST = hashlib.sha256(WHEEL).hexdigest()
ROWS = b'{"messages": []}'
FILE = hashlib.sha256(ROWS).hexdigest()


def is_slow(group: GroupContext, member: int) -> bool:
    return group.task == "slow"


def values(lines: list[AuditLine]) -> list[tuple[Any, ...]]:
    return [(line.tenant, line.via, line.verb, line.target, line.reason or line.outcome, line.count) for line in lines]


async def send(world: World, subject: str, message: Message) -> None:
    await world.bus.publish(Outgoing(subject, message, f"{subject}:{len(await world.rows('SELECT id FROM audit'))}"))


async def audited(asks: Asker, count: int, tenant: str | None = None) -> list[AuditLine]:
    """All lines, once they stand for that many actions."""
    found: list[AuditLine] = []

    async def enough() -> bool:
        found[:] = (await asks.ask(AuditAnswer, tenant, "audit")).lines
        return sum(line.count for line in found) >= count

    await eventually(enough)
    assert sum(line.count for line in found) == count, values(found)
    return found


async def test_every_job_verb_leaves_a_row(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with (
        world_with_blobs(bus, database_url, tmp_path, withheld=is_slow) as world,
        asker(nats_url) as asks,
    ):
        await world.run("a")
        await send(world, f"jobs.submit.acme.{OWNER}", SubmitTask(task="slow", tenant="acme", spec=spec(steps=50)))
        await world.event("slow", "accepted")
        steps: list[tuple[str, Message]] = [
            ("preview", PreviewTask(tenant="acme", request="r", spec=spec())),
            ("pause", ControlTask(task="slow", tenant="acme")),
            ("resume", ControlTask(task="slow", tenant="acme")),
            ("cancel", ControlTask(task="slow", tenant="acme", reason="a secret")),
            ("delete", ControlTask(task="slow", tenant="acme")),
            ("set-alias", SetAlias(tenant="acme", request="s", name="secret", task="a")),
            ("delete-alias", DeleteAlias(tenant="acme", request="t", name="secret")),
            ("set-webhook", SetWebhook(tenant="acme", request="v", name="secret", url="https://secret.example", secret=new_secret())),
            ("delete-webhook", DeleteWebhook(tenant="acme", request="w", name="secret")),
            ("prune", PruneTasks(tenant="acme", request="r", ended_before_s=0.001)),
            ("resend", ResendLetter(tenant="acme", letter=9)),
            ("upload", UploadPackage(tenant="acme", request="u", digest=DIGEST, size_bytes=len(WHEEL), offset=0, data=WHEEL)),
            ("delete-package", DeletePackage(tenant="acme", request="d", digest=DIGEST[:12])),
            ("upload-file", UploadFile(tenant="acme", request="f", digest=FILE, size_bytes=len(ROWS), offset=0, data=ROWS, name="secret")),
            (
                "set-tenant",
                SetTenant.model_validate({"tenant": "acme", "request": "r", "weight": 2.0, "limits": [{"of": "max_tasks", "value": None}]}),
            ),
            ("set-budget", SetBudget(tenant="acme", request="r", period="day", unit="tokens", amount=None)),
            ("set-access", SetAccess(tenant="acme", request="r", account=ACCOUNT, add=NewKey(key=KEY, name="ci", role="member"))),
            ("set-access", SetAccess(tenant="acme", request="r", add=NewKey(key=NEXT, name="ci", role="member"), beside=True)),
            ("set-access", SetAccess(tenant="acme", request="r", suspended=True, revoke=[KEY])),
            ("set-access", SetAccess(tenant="acme", request="r", suspended=False, revoke=[KEY])),
        ]
        count = 2
        for verb, message in steps:
            await send(world, f"jobs.{verb}.acme.{OWNER}", message)
            count += (
                2
                if (verb, getattr(message, "account", None), getattr(message, "suspended", None))
                in [("set-access", ACCOUNT, None), ("set-access", None, True)]
                else 1
            )
            await audited(asks, count)
        await send(world, streams.job("set-price", None), SetPrice.model_validate({"request": "r", "of": "sampled", "price": "2.5"}))
        await world.execute("INSERT INTO accelerators (id, spec) VALUES ('a', '{}')")
        await world.execute("INSERT INTO executors (accelerator, id, pool, service) VALUES ('a', 'rollout-tiny', 'tiny', 'rollout')")
        await send(world, streams.job("move-pool", None), MovePool(request="r", pool="tiny", verb="park"))
        await audited(asks, count + 2)
        await send(world, "jobs.delete-tenant.acme", DeleteTenant(tenant="acme", request="r"))
        found = await audited(asks, count + 5)
    key = "key"
    assert values(found) == [
        ("acme", "short form", "submit", "a", "accepted", 1),
        ("acme", key, "submit", "slow", "accepted", 1),
        ("acme", key, "preview", "", "accepted", 1),
        *(("acme", key, verb, "slow", "accepted", 1) for verb in ("pause", "resume", "cancel", "delete")),
        *(("acme", key, verb, "a.v3", "accepted", 1) for verb in ("set-alias", "delete-alias")),
        *(("acme", key, verb, "acme", "accepted", 1) for verb in ("set-webhook", "delete-webhook")),
        ("acme", key, "prune", "a", "accepted", 1),
        ("acme", key, "resend", "", "letter", 1),
        ("acme", key, "upload", DIGEST, "accepted", 1),
        ("acme", key, "delete-package", DIGEST, "accepted", 1),
        ("acme", key, "upload-file", FILE, "accepted", 1),
        ("acme", key, "set-tenant", "acme", "accepted", 1),
        ("acme", key, "set-budget", "acme", "accepted", 1),
        ("acme", key, "create-tenant", "acme", "accepted", 1),
        ("acme", key, "create-key", KEY, "accepted", 1),
        ("acme", key, "rotate-key", NEXT, "accepted", 1),
        ("acme", key, "suspend-tenant", "acme", "accepted", 1),
        ("acme", key, "revoke-key", KEY, "accepted", 1),
        ("acme", key, "end-suspension", "acme", "accepted", 1),
        ("_all", "short form", "set-price", "sampled", "accepted", 1),
        ("_all", "short form", "move-pool", "tiny", "accepted", 1),
        ("acme", "short form", "delete-tenant", "acme", "accepted", 1),
        ("acme", "scheduler", "revoke-key", NEXT, "accepted", 1),
        ("acme", "scheduler", "tenant-deleted", "acme", "accepted", 1),
    ]
    by_verb = {line.verb: line for line in found}
    assert {line.key for line in found if line.via == key} == {OWNER}
    assert by_verb["set-tenant"].detail == {"weight": 2.0, "max_tasks": None}
    assert by_verb["set-price"].detail["price"] == "2.5"
    assert by_verb["move-pool"].detail == {"pool": "tiny", "verb": "park"}
    assert by_verb["tenant-deleted"].detail["tasks"] == 0
    assert set(JOBS) - set(by_verb) == {"set-access"}, "its effects have rows of their own"
    assert "secret" not in str(found)


async def test_refusals_are_counted_and_leave_no_row_each(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("a", until="accepted")
        for number in range(5):
            await bus.publish(Outgoing("jobs.cancel.acme", ControlTask(task=f"other-{number}", tenant="acme"), f"c{number}"))
            await bus.publish_raw("jobs.submit.acme", b"\xff", f"garbage{number}", {})
        for number in range(3):
            foreign = SubmitTask(task=f"x{number}", tenant="acme", spec=spec(tenant="globex"))
            await bus.publish(Outgoing("jobs.submit.acme", foreign, f"s{number}"))
        found = [line for line in await audited(asks, 14) if line.outcome == "refused"]
        if len(found) == 3:  # else the hour has ended meanwhile
            assert {(line.verb, line.reason, line.count) for line in found} == {
                ("cancel", "task", 5),
                ("submit", "malformed", 5),
                ("submit", "tenant", 3),
            }


async def test_a_download_leaves_one_row_however_it_is_made(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("a")
        await world.run("b")

        async def downloads(tenant: str | None = None) -> list[tuple[str, str, str, str]]:
            lines = (await asks.ask(AuditAnswer, tenant, "audit")).lines
            return [(line.tenant, line.verb, line.target, line.reason or line.outcome) for line in lines if line.verb in DOWNLOADS]

        await asks.ask(AdapterAnswer, "acme", "adapter", task="a")
        for _ in range(3):
            await asks.ask(ChunkAnswer, "acme", "chunk", task="a", version=3, offset=0)
            await asks.ask(ChunkAnswer, "acme", "chunk", task="b", version=3, offset=0)
        await asks.ask(AdapterAnswer, None, "adapter", task="a")
        expected = [("acme", "adapter", "a.v3", "accepted"), ("acme", "chunk", "b.v3", "accepted"), ("acme", "adapter", "a.v3", "accepted")]
        assert await downloads() == expected == await downloads("acme")
        await asks.refused("globex", "adapter", task="a")
        await asks.refused("acme", "adapter", task="a", version=9)
        await asks.refused("acme", "chunk", task="a", version=3, offset=10**9)
        assert await downloads("globex") == []
        assert await downloads() == [
            *expected,
            ("", "adapter", "", "task"),
            ("acme", "adapter", "", "task"),
            ("acme", "chunk", "", "invalid"),
        ]
