"""Every user, every family of subjects, publish and subscribe: NATS decides each cell as the tables say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from common import streams
from common.access.claims import REFUSED
from common.access.credentials import read_credentials
from common.access.roles import ROLES, Role, imports, role_permissions
from common.access.rows import Permissions
from common.access.services import SERVICES, STORES, service_permissions
from common.messages.verbs import JOBS, QUESTIONS
from tests.common.access.raw_clients import raw
from tests.support.keyed import DEPLOYMENT, Keyed, keyed_server
from tests.support.matching import covers
from tests.support.waiting import eventually

LAST = "no.such.family"
FOREIGN_KEY = "U" + "A" * 55
STREAM_VERBS = ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "MSG.GET", "MSG.DELETE", "LEADER.STEPDOWN", "SNAPSHOT", "RESTORE")
CONSUMERS = (
    *(one for one in vars(streams).values() if isinstance(one, streams.Consumer)),
    *(make("math") for make in (streams.env_checks, streams.env_opens, streams.env_turns)),
    streams.env_packages("own"),
    streams.rollout_samples("tiny"),
    streams.trainer_batches("tiny"),
    streams.rollout_samples("tiny@a"),
    streams.trainer_batches("tiny@b"),
)


def families(key: str) -> list[str]:
    """A subject of each family, with this user's key where one is named."""
    found = [f"jobs.{verb}.{tenant}{end}" for verb in JOBS for tenant in ("acme", "globex") for end in ("", f".{key}")]
    found += [f"jobs.submit.{tenant}.{FOREIGN_KEY}" for tenant in ("acme", "globex")] + ["jobs.submit", "jobs.submit.acme.a.b"]
    found += [f"ask.{tenant}.{verb}" for verb in (*QUESTIONS, "other") for tenant in ("acme", "globex")]
    found += [streams.check("math", "t"), streams.open_group("math", "t", 1), streams.sample("tiny", "t", "x")]
    found += [streams.sample("tiny@a", "t", "x"), streams.sample("tiny@c", "t", "x"), streams.batch("tiny@a", "t")]
    found += [streams.sample("other", "t", "x"), streams.turn("math", "t", "x"), streams.turn("other", "t", "x"), streams.checked("t")]
    found += [streams.check_package("own", "acme", "x"), streams.package_checked("acme", "x")]
    found += [
        streams.scored("t", "x"),
        streams.batch("tiny", "t"),
        streams.weight_updated("tiny", "t"),
        streams.weight_updated("other", "t"),
    ]
    found += [streams.events(tenant, "t") for tenant in ("acme", "globex")]
    found += [streams.failed(stage, "t") for stage in ("jobs", "settle", "check", "package", "open", "turn", "sample", "train", "other")]
    found += [
        streams.value_subject(each.name, f"{who}.x")
        for each in streams.BUCKETS
        for who in ("scheduler", "env", "rollout", "trainer", "gateway")
    ]
    found += ["prompts.serve.tiny.0.t.x", "prompts.serve.other.0.t.x", "replies.x", "replies.x.y", "cancels.x", "cancels.x.y"]
    found += ["$O.blobs.C.x", "$O.blobs.M.x", "$O.other.C.x"]
    found += [f"$JS.API.STREAM.{verb}.{store}" for verb in STREAM_VERBS for store in (*STORES, "OTHER")]
    found += [f"$JS.API.{verb}" for verb in ("INFO", "STREAM.NAMES", "STREAM.LIST", "ACCOUNT.PURGE.x", "META.LEADER.STEPDOWN")]
    for store in (*STORES, "OTHER"):
        found += [f"$JS.API.DIRECT.GET.{store}", f"$JS.API.DIRECT.GET.{store}.x.y", f"$JS.API.CONSUMER.CREATE.{store}"]
        found += [
            f"$JS.API.CONSUMER.CREATE.{store}.spy.a.b",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{store}.spy",
            f"$JS.API.CONSUMER.LIST.{store}",
        ]
        found += [f"$JS.API.CONSUMER.NAMES.{store}", f"$JS.FC.{store}.x.y"]
    for consumer in CONSUMERS:
        place = f"{consumer.stream}.{consumer.name}"
        found += [f"$JS.API.CONSUMER.{verb}.{place}" for verb in ("INFO", "DELETE", "MSG.NEXT", "CREATE", "DURABLE.CREATE", "PAUSE")]
        found += [f"$JS.API.CONSUMER.CREATE.{place}.{consumer.subject.replace('>', 'x')}", f"$JS.API.CONSUMER.CREATE.{place}.other.x"]
        found += [f"$JS.ACK.{place}.1.2.3.4.5"]
    found += [f"_INBOX.{name}.x" for name in SERVICES] + ["_INBOX.x", "_R_.x", "other"]
    return [*found, *(f"$SYS.REQ.{what}" for what in ("SERVER.PING", "CLAIMS.UPDATE", "CLAIMS.DELETE", "SERVER.x.KICK", "USER.INFO"))]


def heard(key: str) -> list[str]:
    """What one may try to hear: the families, and whole groups of them."""
    groups = [
        f"{head}.>" for head in ("jobs", "ask", "prompts", "trajectories", "weight-updated", "events", "failed", "$KV", "$O", "_INBOX")
    ]
    groups += ["$JS.API.>", "$JS.ACK.>", "$JS.EVENT.>", "$SYS.>", "ask.*.*", "events.acme.>", "events.globex.>", ">", "*", "_R_.>"]
    groups += [f"_INBOX.{name}.>" for name in SERVICES]
    return [*families(key), *groups]


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Keyed]:
    async with keyed_server(tmp_path, refuses=True) as server:
        yield server


def users(server: Keyed) -> dict[str, tuple[Path, Permissions]]:
    """Name → its creds file, and what the tables permit."""
    found = {name: (server.keys.credentials(name), service_permissions(name, DEPLOYMENT)) for name in SERVICES if name != "scheduler"}
    owners: list[tuple[str, Role]] = [("acme", role) for role in ROLES if role != "admin"]
    for tenant, role in [*owners, ("globex", "owner"), ("admin", "admin")]:
        path = server.key(tenant, role)
        key = read_credentials(path).public
        found[f"{role} of {tenant}"] = (path, role_permissions(role, "*" if role == "admin" else tenant, key))
    # Last: it may delete streams, and does.
    return found | {"scheduler": (server.keys.credentials("scheduler"), service_permissions("scheduler", DEPLOYMENT))}


async def refused_everything(client: Client, refused: set[tuple[str, str]]) -> None:
    """Returns once nats-py has reported every refusal: they come in order, and nobody may publish the last."""
    await client.publish(LAST, b"")
    await eventually(lambda: ("publish", LAST) in refused)


async def ignore(_: Msg) -> None:
    pass


async def test_every_cell_is_as_the_tables_say(keyed: Keyed) -> None:
    wrong: list[str] = []
    cells = 0
    for name, (creds, allowed) in users(keyed).items():
        key = read_credentials(creds).public
        refused: set[tuple[str, str]] = set()
        async with raw(keyed, creds, refused) as client:
            for subject in families(key):
                await client.publish(subject, b"rogue")
            for subject in heard(key):
                await client.subscribe(subject, cb=ignore)
            await refused_everything(client, refused)
        for kind, patterns, tried in (("publish", allowed.publish, families(key)), ("subscription", allowed.subscribe, heard(key))):
            for subject in tried:
                cells += 1
                permitted = covers(patterns, subject)
                names = {subject, f"{REFUSED}.{subject}"} if subject.startswith("events.") else {subject}
                if permitted == any((kind, name.lower()) in refused for name in names):
                    wrong.append(f"{name}: {kind} of {subject} is {'refused' if permitted else 'taken'}")
    assert not wrong, wrong[:20]
    assert cells > 8_000


async def test_reply_to_a_foreign_subject_reaches_nobody(keyed: Keyed) -> None:
    """A key names any reply subject; the answer stays in its own account, so that it is nobody's event, job or inbox."""
    answered: list[str] = []
    heard_by: dict[str, list[str]] = {"globex": [], "services": []}
    others = {"globex": keyed.key("globex", "owner"), "services": keyed.keys.credentials("operator")}
    replies = [
        "events.globex.t",
        "jobs.cancel.globex",
        "_INBOX.x",
        "_INBOX.scheduler.x",
        "trajectories.scored.t.x",
        "weight-updated.tiny.t",
    ]
    async with raw(keyed, keyed.keys.credentials("scheduler"), set()) as scheduler, raw(keyed, others["globex"], set()) as globex:

        async def answer(message: Msg) -> None:
            answered.append(message.subject)
            await message.respond(b"an answer")

        def hears(who: str) -> object:
            async def listen(message: Msg) -> None:
                heard_by[who].append(message.subject)

            return listen

        await scheduler.subscribe("ask.*.*", cb=answer)
        await scheduler.subscribe("_INBOX.scheduler.>", cb=hears("services"))  # type: ignore[arg-type]
        for subject in ("events.globex.>", "_INBOX.>"):
            await globex.subscribe(subject, cb=hears("globex"))  # type: ignore[arg-type]
        await asyncio.gather(scheduler.flush(), globex.flush())
        asked = 0
        for role in ("owner", "member", "reader"):
            async with raw(keyed, keyed.key("acme", role), set()) as evil:  # type: ignore[arg-type]
                for reply in replies:
                    await evil.publish("ask.acme.status", b"rogue", reply=reply)
                    if role != "reader":
                        await evil.publish("jobs.cancel.acme", b"rogue", reply=reply)
                    asked += 1
                await evil.flush()
                assert (await evil.request("ask.acme.status", b"honest", timeout=60)).data == b"an answer"
                asked += 1
        await asyncio.gather(scheduler.flush(), globex.flush())
        assert len(answered) == asked
        assert heard_by == {"globex": [], "services": []}
    async with await keyed.connect("scheduler") as bus:
        assert [subject for stream in streams.STREAMS for subject in await bus.streams.subjects(stream)] == []
        assert (await bus.own_jobs.waiting())["globex"] == 0


async def test_tenant_hears_its_own_events_live_and_no_other(keyed: Keyed) -> None:
    got: dict[str, list[str]] = {"acme": [], "globex": [], "admin": []}
    async with await keyed.connect("scheduler") as scheduler:
        clients: list[Client] = []
        for who in got:
            client = Client()
            await client.connect(keyed.url, user_credentials=str(keyed.key(who, "admin" if who == "admin" else "reader")))

            async def listen(message: Msg, who: str = who) -> None:
                got[who].append(message.subject)

            await client.subscribe("events.>" if who == "admin" else f"events.{who}.>", cb=listen)
            await client.flush()
            clients.append(client)
        for tenant in ("acme", "globex"):
            await scheduler.publish_raw(streams.events(tenant, "t"), b"", tenant, {})
        await eventually(lambda: sum(map(len, got.values())) >= 4)
        for client in clients:
            await client.flush()
            await client.close()
    assert got == {"acme": ["events.acme.t"], "globex": ["events.globex.t"], "admin": ["events.acme.t", "events.globex.t"]}


def test_imports_hold_no_other_tenants_name() -> None:
    assert all("acme" in each.subject and "acme" in each.exported for each in imports("acme"))
