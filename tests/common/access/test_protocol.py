"""What nats-py publishes by itself while the doors of the bus are used: all of it is permitted, and nothing else is."""

import ast
import asyncio
import importlib
import inspect
import pkgutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nats.js
import pytest
from nats.js.errors import NotFoundError

from common import streams
from common.access.rows import Use
from common.access.services import SERVICES, STORES, service_permissions, table
from common.bus import Bus, Outgoing
from marlaas.stack import servers
from tests.common.access.doing import REPORT, Doing, fill
from tests.support.buses import HASTY
from tests.support.keyed import DEPLOYMENT, keyed_server
from tests.support.matching import matches
from tests.support.proxy import Wire
from tests.support.spying import refusals, seen
from tests.support.waiting import at_work, eventually

MODULES = [module.name for module in pkgutil.iter_modules(nats.js.__path__)]
FOR_UPGRADES = {f"scheduler: $JS.API.STREAM.UPDATE.{store}" for store in STORES if store.startswith(("KV_", "OBJ_"))}
"""What a scheduler does to stores that another version, or other settings, have declared; nothing does it here."""


async def test_every_door_is_open_to_those_who_have_a_row_and_every_permission_is_used(tmp_path: Path) -> None:
    async with keyed_server(tmp_path, traced=True) as keyed, await Bus.connect(keyed.url, "stages", creds=keyed.stages_key()) as stages:
        blob = await fill(stages)
        found = table(DEPLOYMENT)
        for service, rows in sorted(found.items(), key=lambda each: each[0] == "scheduler"):  # which may delete streams, and does
            async with await keyed.connect(service) as bus:
                doing = Doing(bus, stages, blob)
                for row in sorted(rows, key=lambda row: list(Use).index(row.use)):
                    async with asyncio.timeout(60):
                        await doing.use(row)
        assert refusals(keyed.log) == []
        unused = {one for service in SERVICES for one in _unused(service, keyed.log)}
        assert unused == FOR_UPGRADES


async def test_followers_continue_after_silence_lost_consumers_and_reconnections(tmp_path: Path) -> None:
    """nats-py then subscribes once more by itself, with another consumer."""
    async with (
        keyed_server(tmp_path, traced=True) as keyed,
        Wire("rollout", keyed.port).listening() as wire,
        await Bus.connect(keyed.url, "stages", creds=keyed.stages_key()) as stages,
        await Bus.connect(
            servers.nats_url(wire.port), "rollout", creds=keyed.keys.credentials("rollout"), timings=replace(HASTY, idle_heartbeat_s=0.2)
        ) as rollout,
    ):
        heard: list[str] = []

        async def follow() -> None:
            async for delivery in rollout.streams.follow(streams.WEIGHTS, "weight-updated.tiny.>"):
                heard.append(delivery.subject)

        async def hears(task: str) -> None:
            subject = streams.weight_updated("tiny", task)
            await stages.publish(Outgoing(subject, REPORT, subject))
            await eventually(lambda: subject in heard, timeout_s=60)

        def consumers_made() -> int:
            return sum(one.subject == "$JS.API.CONSUMER.CREATE.WEIGHTS" for one in seen(keyed.log))

        async with at_work(follow()) as following:
            await hears("first")
            wire.silence()
            await asyncio.sleep(1.0)
            wire.speak()
            await eventually(lambda: consumers_made() > 1)
            await hears("after-silence")
            made, js = consumers_made(), stages.blobs_context()
            for consumer in await js.consumers_info("WEIGHTS"):
                with suppress(NotFoundError):  # the follower may have replaced it
                    await js.delete_consumer("WEIGHTS", consumer.name)
            await eventually(lambda: consumers_made() > made)
            await hears("after-loss")
            wire.cut()
            await eventually(lambda: rollout.is_connected)
            await hears("after-reconnection")
            assert not following.done()
        assert refusals(keyed.log) == []


def _unused(service: str, log: Path) -> list[str]:
    """What the service's key permits, and nothing has published."""
    published = {one.subject for one in seen(log) if one.who == service}
    allowed = service_permissions(service, DEPLOYMENT).publish
    return [f"{service}: {one}" for one in allowed if not any(matches(one, each) for each in published)]


LIBRARY = {
    "nats.aio.client": {"subject", "fc_reply"},
    "nats.aio.msg": {"self.reply"},
    "nats.js.client": {"subject", "fc_reply", "self._nms"},
    "nats.js.kv": {"f'{self._pre}{key}'"},
    "nats.js.object_store": {"chunk_subj", "meta_subj"},
}
"""Expressions of the subjects that nats-py publishes, but for its requests to JetStream, which its callers name: what it is given,
flow control (`rows.follows`), acknowledgements, NEXT (`rows.consumes`), keys of buckets, and blobs (`rows.stores_blobs`)."""


@pytest.mark.parametrize("name", ["nats.aio.client", "nats.aio.msg", "nats.aio.subscription", *(f"nats.js.{one}" for one in MODULES)])
def test_library_publishes_by_itself_what_the_rows_know(name: str) -> None:
    tree = ast.parse(inspect.getsource(importlib.import_module(name)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    found = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith((".publish", "._send_publish"))}
    assert found == LIBRARY.get(name, set()), "which row permits a subject that is new here?"
