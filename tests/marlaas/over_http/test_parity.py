"""Every method of the SDK gives the same by NATS and by HTTP: results, and what is refused."""

import dataclasses
import inspect
import io
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from common.bus import Bus
from common.messages import SetPrice, SetTenant
from marlaas.client import Client, ClientError
from tests.marlaas.tasks import SPEC
from tests.support.gateway.files import rows, serving_files
from tests.support.gateway.serving import gateway
from tests.support.scheduler.finished import is_slow, settled, stages
from tests.support.scheduler.stages import running_world, spec
from tests.support.scheduler.uploads import WHEEL, PackageStages, digest_of, serving_own
from tests.support.scheduler.webhooks import RULES
from tests.support.waiting import eventually_equals

PARTS = ("billing", "accelerators", "aliases", "webhooks", "packages", "files")
NOT_CALLS = {"connect", "tenant", "key", *PARTS}
DAY = date(2026, 1, 1)
CHANGING = re.compile(r"(_s|'at'|'number'|'busy')(=|'?: )[^,)}]+|[0-9a-f]{64}|whsec_[^']+")
"""Times, numbers of events, present loads, and digests and secrets of what each call makes."""


def wheel(n: int) -> bytes:
    return WHEEL + bytes([n])


def price(n: int, year: int = 2090) -> SetPrice:
    return SetPrice(
        request=f"r{n}-{year}", of="sampled", price=Decimal(n), valid_from=datetime(year, 1, n if year > 2026 else 1, tzinfo=UTC)
    )


async def controlled(c: Client, n: int, order: Callable[[str], Awaitable[None]], state: str) -> None:
    """Return once the scheduler has done it: orders are only published, and `delete`, next, names the state in its refusal."""
    await order(f"slow-{n}")

    async def found() -> str:
        return (await c.status(f"slow-{n}")).state

    await eventually_equals(found, state)


async def put(c: Client, n: int) -> Any:
    lines = rows(12).splitlines(keepends=True)
    return await c.files.upload(io.BytesIO(b"".join([*lines[:9], lines[9 + n]])), f"rows{n}.jsonl", "acme")


async def own_file(c: Client, n: int) -> Any:
    return next(one for one in await c.files.all() if one.name == f"rows{n}.jsonl")


async def own_package(c: Client, n: int) -> Any:
    return await c.packages.find(digest_of(wheel(n))[:20])


CALLS: list[tuple[str, Callable[[Client, int, Path], Any]]] = [
    ("preview", lambda c, n, to: c.preview(SPEC)),
    ("preview", lambda c, n, to: c.preview({**SPEC, "pool": "huge", "steps": 0})),
    ("submit", lambda c, n, to: c.submit({**SPEC, "name": f"slow{n}"}, f"slow-{n}")),
    ("submit", lambda c, n, to: c.submit({**SPEC, "name": f"slow{n}"}, f"slow-{n}")),
    ("submit", lambda c, n, to: c.submit({**SPEC, "steps": 9}, f"slow-{n}")),
    ("submit", lambda c, n, to: c.submit({**SPEC, "pool": "huge"}, f"huge-{n}")),
    ("accepted", lambda c, n, to: c.accepted({**SPEC, "name": f"slow{n}"}, f"slow-a{n}")),
    ("tasks", lambda c, n, to: c.tasks()),
    ("tasks", lambda c, n, to: c.tasks(states=["finished"], pool="tiny", name="gcd", text="a")),
    ("status", lambda c, n, to: c.status("a")),
    ("status", lambda c, n, to: c.status("absent")),
    ("why", lambda c, n, to: c.why("a")),
    ("spec", lambda c, n, to: c.spec("a")),
    ("steps", lambda c, n, to: c.steps("a", 1)),
    ("versions", lambda c, n, to: c.versions("a")),
    ("samples", lambda c, n, to: c.samples("a", 2)),
    ("failures", lambda c, n, to: c.failures()),
    ("evaluations", lambda c, n, to: c.evaluations("a")),
    ("compare", lambda c, n, to: c.compare("a", "b")),
    ("usage", lambda c, n, to: c.usage()),
    ("stored", lambda c, n, to: c.stored()),
    ("environments", lambda c, n, to: c.environments()),
    ("replicas", lambda c, n, to: c.replicas()),
    ("troubles", lambda c, n, to: c.troubles()),
    ("pools", lambda c, n, to: c.pools()),
    ("audit", lambda c, n, to: c.audit("acme")),
    ("watch", lambda c, n, to: c.watch("a", "b")),
    ("wait", lambda c, n, to: c.wait("a")),
    ("pull", lambda c, n, to: c.pull("a", to / f"adapter{n}")),
    ("pull", lambda c, n, to: c.pull("a", to / f"no{n}", version=9)),
    ("pause", lambda c, n, to: controlled(c, n, lambda task: c.pause(task, "a while"), "paused")),
    ("resume", lambda c, n, to: controlled(c, n, c.resume, "running")),
    ("delete", lambda c, n, to: c.delete(f"slow-{n}")),
    ("cancel", lambda c, n, to: c.cancel(f"slow-a{n}", "enough")),
    ("wait", lambda c, n, to: c.wait(f"slow-a{n}")),
    ("cancel", lambda c, n, to: c.cancel(f"slow-a{n}")),
    ("delete", lambda c, n, to: c.delete(f"slow-a{n}")),
    ("delete", lambda c, n, to: c.delete(f"slow-a{n}")),
    ("prune", lambda c, n, to: c.prune("acme", dry_run=True)),
    ("resend", lambda c, n, to: c.resend(7)),
    ("set_tenant", lambda c, n, to: c.set_tenant(SetTenant(tenant="acme", request=f"r{n}", weight=2.0))),
    ("set_tenant", lambda c, n, to: c.set_tenant(SetTenant(tenant="none", request=f"none{n}", weight=2.0))),
    ("billing.invoice", lambda c, n, to: c.billing.invoice(DAY)),
    ("billing.set_price", lambda c, n, to: c.billing.set_price(price(n))),
    (
        "billing.set_price",
        lambda c, n, to: c.billing.set_price(price(n, 2001)),
    ),
    ("billing.prices", lambda c, n, to: c.billing.prices()),
    ("billing.set_budget", lambda c, n, to: c.billing.set_budget("acme", "month", "tokens", Decimal(10**9))),
    ("billing.budgets", lambda c, n, to: c.billing.budgets()),
    ("accelerators.executors", lambda c, n, to: c.accelerators.executors()),
    ("accelerators.slices", lambda c, n, to: c.accelerators.slices()),
    ("accelerators.moves", lambda c, n, to: c.accelerators.moves()),
    ("accelerators.trace", lambda c, n, to: c.accelerators.trace()),
    ("accelerators.order", lambda c, n, to: c.accelerators.order("tiny", "park")),
    ("aliases.set", lambda c, n, to: c.aliases.set(f"prod{n}", "a", 2, tenant="acme")),
    ("aliases.set", lambda c, n, to: c.aliases.set(f"prod{n}", "a", tenant="acme", expected="a@1")),
    ("aliases.set", lambda c, n, to: c.aliases.set("tiny", "a", tenant="acme")),
    ("aliases.set", lambda c, n, to: c.aliases.set("prod", "absent", tenant="acme")),
    ("aliases.all", lambda c, n, to: c.aliases.all()),
    ("aliases.delete", lambda c, n, to: c.aliases.delete(f"prod{n}", tenant="acme")),
    ("aliases.delete", lambda c, n, to: c.aliases.delete(f"prod{n}", tenant="acme")),
    ("aliases.delete", lambda c, n, to: c.aliases.delete(f"prod{n}")),
    ("webhooks.set", lambda c, n, to: c.webhooks.set(f"pager{n}", "http://127.0.0.1:9/hook", tenant="acme")),
    ("webhooks.set", lambda c, n, to: c.webhooks.set(f"pager{n}", "http://10.0.0.1/", tenant="acme")),
    ("webhooks.all", lambda c, n, to: c.webhooks.all()),
    ("webhooks.delete", lambda c, n, to: c.webhooks.delete(f"pager{n}", tenant="acme")),
    ("webhooks.delete", lambda c, n, to: c.webhooks.delete(f"pager{n}", tenant="acme")),
    ("packages.upload", lambda c, n, to: c.packages.upload(wheel(n), "acme")),
    ("packages.upload", lambda c, n, to: c.packages.upload(b"", "acme")),
    ("packages.all", lambda c, n, to: c.packages.all()),
    ("packages.find", lambda c, n, to: own_package(c, n)),
    ("packages.delete", lambda c, n, to: _of(own_package(c, n), c.packages.delete)),
    ("files.upload", lambda c, n, to: put(c, n)),
    ("files.all", lambda c, n, to: c.files.all()),
    ("files.find", lambda c, n, to: c.files.find(f"file-{'0' * 64}")),
    ("files.copies", lambda c, n, to: c.files.copies(f"file-{'0' * 64}")),
    ("files.named", lambda c, n, to: c.files.named("0" * 12)),
    ("files.content", lambda c, n, to: _of(own_file(c, n), lambda file: _whole(c.files.content(file)))),
    ("files.fetch", lambda c, n, to: _of(own_file(c, n), lambda file: c.files.fetch(file, to / f"rows{n}"))),
    ("files.delete", lambda c, n, to: _of(own_file(c, n), c.files.delete)),
    ("delete_tenant", lambda c, n, to: c.delete_tenant(f"gone{n}")),
    ("delete_tenant", lambda c, n, to: c.delete_tenant("none")),
]
"""Calls of the client `c`, of which there are `n` 1 and 2: what a call makes or changes has the number in its name."""


async def _of(found: Any, call: Callable[[Any], Any]) -> Any:
    return await call(await found)


async def _whole(parts: Any) -> int:
    return len([part async for part in parts])


async def outcome(call: Any) -> str:
    """The result or the refusal, without what differs from call to call."""
    try:
        found = [one async for one in call] if inspect.isasyncgen(call) else await call
    except ClientError as error:
        found = f"{type(error).__name__}: {error}"
    return CHANGING.sub(r"\1", re.sub(r"(?<=[a-z-])[12]\b", "N", repr(_plain(found))))


def _plain(found: Any) -> Any:
    if isinstance(found, BaseModel):
        return found.model_dump()
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        return dataclasses.asdict(found)
    return [_plain(one) for one in found] if isinstance(found, list) else found


async def services(client: Client) -> set[str]:
    """Of the replicas that the scheduler has read of: it reads them every two seconds."""
    return {one.service for one in await client.replicas()}


def test_every_method_is_called() -> None:
    client = Client(cast(Any, None))
    found = {name for name, _ in inspect.getmembers(Client, inspect.isroutine) if not name.startswith("_")} - NOT_CALLS
    for part in PARTS:
        members = inspect.getmembers(type(getattr(client, part)), inspect.isroutine)
        found |= {f"{part}.{name}" for name, _ in members if not name.startswith("_")}
    assert {name for name, _ in CALLS} == found


async def test_both_doors_answer_alike(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    made = stages(bus, tmp_path / "made", withheld=is_slow)
    async with running_world(bus, database_url, made) as world, serving_own(bus, PackageStages(trains=False)), serving_files(world, made):
        object.__setattr__(world.scheduler._context, "webhooks", RULES)
        for task, tenant in ("a", "acme"), ("b", "acme"), ("c", "gone1"), ("d", "gone2"):
            await world.run(task, spec(tenant=tenant))
        await settled(world)
        await world.rows_become("SELECT count(*) FROM stored_blobs WHERE kind = 'checkpoint'", [(8,)])  # the superseded ones are deleted
        async with gateway(bus, nats_url) as url, Client.connect(nats_url) as by_nats, Client.connect(url) as by_http:
            await eventually_equals(lambda: services(by_nats), {"env", "gateway", "rollout"}, 60)
            different = {
                f"{number} {name}": both
                for number, (name, call) in enumerate(CALLS)
                if len(set(both := [await outcome(call(client, n, tmp_path)) for n, client in ((1, by_nats), (2, by_http))])) > 1
            }
    assert not different, "\n".join(f"{call}:\n  {nats}\n  {http}" for call, (nats, http) in different.items())
